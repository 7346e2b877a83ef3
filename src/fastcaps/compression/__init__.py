"""Compression: remove capsule types and stem maps, then train what is left to answer as the whole network does."""

from fastcaps.compression.pruning import Size, multiply_adds, prune
from fastcaps.compression.ranking import RANKINGS, Moments, Ranking, measure_moments, rank_maps, rank_types
from fastcaps.compression.refitting import RefitEpoch, RefitSettings, refit
from fastcaps.compression.search import Compressed, CompressSettings, Observer, Ranked, Step, compress, pruned
from fastcaps.compression.teacher import Teacher

__all__ = [
    "compress",
    "CompressSettings",
    "Compressed",
    "Step",
    "Ranked",
    "Observer",
    "Size",
    "prune",
    "pruned",
    "multiply_adds",
    "RANKINGS",
    "Ranking",
    "Moments",
    "measure_moments",
    "rank_types",
    "rank_maps",
    "Teacher",
    "RefitSettings",
    "RefitEpoch",
    "refit",
]

"""Every way of building a run's master matrix, compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fastcaps._progress import progress_bar
from fastcaps.analysis.ablation import Ablation, Trial, answers, score
from fastcaps.data import batches
from fastcaps.master import Filter, Method, sweep, uniform_coefficients
from fastcaps.training.run import Run
from fastcaps.workflows._common import open_run, select_device


def ablate(
    run: str | Path | Run,
    chains: Mapping[str, Sequence[Filter]],
    methods: Sequence[Method],
    iterations: Sequence[int],
    *,
    limit: int | None = None,
    batch_size: int = 256,
    data_dir: str | Path | None = None,
    device: str | torch.device = "auto",
    threads: int | None = None,
) -> Ablation:
    """Build the master matrix in every way, and score each on the held-out images and the test images.

    Args:
        run: a run, its folder, or the name of a bundled network.
        chains: filters by the name of their chain; none for all images.
        methods: of building the matrix.
        iterations: of routing, from 1; one more than the network has for the update after its last.
        limit: only the first so many training images.
        batch_size: images at a time.
        data_dir: folder of the data sets' files.
        device: ``"auto"``, or a device of PyTorch.
        threads: CPU threads; all by default.
    """
    run = open_run(run)
    model = run.model().to(select_device(device, threads)).eval()
    data = run.data(data_dir)
    view = data.augmentation.test_view
    images = run.training_part(data)
    if limit is not None:
        images = images.subset(torch.arange(min(limit, len(images))))
    passes = 2 if any(chains.values()) else 1
    with progress_bar("accumulating", passes * len(images)) as observe:
        swept = sweep(model, lambda: batches(images, batch_size, view=view), iterations, chains, observe=observe)
    masters = [
        (name, method, number, swept.sums[number, name].compute(method=method))
        for number in iterations
        for name in chains
        for method in methods
        if (number, name) in swept.sums
    ]
    uniform = uniform_coefficients(model.config)
    matrices = [uniform.values, *(master.values for *_, master in masters)]
    parts = {"validation": run.validation_part(data), "test": data.test}
    scores: dict[str, list[Any]] = {}
    dynamic, counts = {}, {}
    for part, split in parts.items():
        if split is None:
            scores[part] = [None] * len(matrices)
            continue
        with progress_bar(f"comparing on {part} images", len(split)) as observe:
            truth, routed, classes = answers(model, matrices, batches(split, batch_size, view=view), observe)
        dynamic[part], counts[part] = float((routed == truth).mean()), len(truth)
        scores[part] = [score(truth, routed, classes[0], one) for one in classes]
    trials = [
        Trial(name, method, number, int(master.counts.sum()), scores["validation"][k + 1], scores["test"][k + 1])
        for k, (name, method, number, master) in enumerate(masters)
    ]
    baseline = Trial("uniform", "–", 1, 0, scores["validation"][0], scores["test"][0])
    skipped = tuple(f"{name}, iteration {number}: {why}" for (number, name), why in swept.skipped.items())
    return Ablation(dynamic, counts, baseline, tuple(trials), skipped)

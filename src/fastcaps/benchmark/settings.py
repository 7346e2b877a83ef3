"""Settings of a benchmark of inference."""

from dataclasses import dataclass, field

from fastcaps._result import Record
from fastcaps.benchmark.engines import Networks, installed_engines
from fastcaps.compression import Size
from fastcaps.nn import CapsNetConfig

# Variants of the routing layer alone.
ROUTINGS = ("plain dynamic", "dynamic", "folded")


@dataclass(frozen=True, kw_only=True)
class Settings(Record):
    """What is measured, and how thoroughly.

    Attributes:
        config: configuration of the network.
        compressed: size of the compressed network; three eighths of the types and maps when None.
        batches: batch sizes.
        repetitions: turns of each engine.
        least: minimum duration of a turn in seconds.
        budget: maximum seconds of an engine per batch size, after at least three turns.
        memory: whether peak memory is measured, in separate processes.
        isolated: whether each engine runs in a process of its own; they still take turns.
        growth: sizes to measure for each of lower capsules, classes, iterations and batch.
        growth_batch: batch size while another size grows.
        cnn_channels: channels of the convolutional baseline.
        square: side of the square product that measures the peak of the machine.
    """

    config: CapsNetConfig = field(default_factory=CapsNetConfig.mnist)
    compressed: Size | None = None
    batches: tuple[int, ...] = (1, 8, 32, 128)
    repetitions: int = 7
    least: float = 0.05
    budget: float = 0.5
    memory: bool = False
    isolated: bool = True
    growth: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {
            "lower capsules": (1152, 4 * 1152, 16 * 1152),
            "classes": (10, 100, 1000),
            "iterations": (1, 2, 3, 4, 5),
            "batch": (1, 8, 32, 128),
        }
    )
    growth_batch: int = 8
    cnn_channels: tuple[int, int, int] = (256, 256, 128)
    square: int = 2048

    @classmethod
    def for_network(cls, config: CapsNetConfig) -> "Settings":
        """Return settings for the sizes of a network, with the routing layer growing from them."""
        i, j = config.lower_capsules, config.classes
        growth = {"lower capsules": (i, 4 * i, 16 * i), "classes": tuple(sorted({j, 10, 100, 1000}))}
        return cls(config=config, growth={**cls().growth, **growth})

    @classmethod
    def quick(cls, *, memory: bool = False) -> "Settings":
        """Return settings for a network so small that it only shows whether everything works."""
        return cls(
            config=CapsNetConfig.for_images(
                14, 14, 1, classes=3, stem_channels=8, stem_kernel=5, capsule_types=2, primary_kernel=5, decoder=(8,)
            ),
            batches=(1, 2),
            repetitions=1,
            least=0.0,
            memory=memory,
            isolated=False,
            growth={"lower capsules": (18, 36), "classes": (3, 6), "iterations": (1, 2), "batch": (1, 2)},
            growth_batch=2,
            cnn_channels=(4, 4, 2),
            square=64,
        )

    @property
    def networks(self) -> Networks:
        """The networks that are measured."""
        return Networks(self.config, self.compressed, self.cnn_channels)

    @property
    def turns(self) -> int:
        """Total number of turns, for a progress bar."""
        engines = len(installed_engines())
        points = len(self.batches) * (engines + 1) + sum(map(len, self.growth.values())) * len(ROUTINGS)
        return points * (self.repetitions + 1) + self.memory * (engines + len(ROUTINGS))

"""Run tries in processes of their own, with limits of time and memory, and sort out how they ended."""

import multiprocessing
import random
import resource
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile.mutators import Mutator

SECONDS, GIGABYTES = 20, 4
# Tries per process: when one hangs or dies, only these are lost, and are run again one by one.
CHUNK = 50


@dataclass(frozen=True)
class Target:
    """A reader and what it reads.

    Attributes:
        name: of the kind of file.
        prepare: writes a specimen into a folder and returns the file that is mutated.
        read: reads from the folder; refusing is raising ValueError or OSError with one line.
        mutators: ways to change the file.
        writes: whether reading writes, too, so that every try needs a folder of its own.
    """

    name: str
    prepare: Callable[[Path], Path]
    read: Callable[[Path], object]
    mutators: Sequence[Mutator]
    writes: bool = False


@dataclass
class Summary:
    """How the tries of a target ended.

    Attributes:
        tries: number of them.
        accepted: read as if nothing were wrong.
        refused: with one clear line.
        failures: by kind: a traceback, several lines, a hang, a crash; with the seed of the first.
    """

    tries: int = 0
    accepted: int = 0
    refused: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    examples: dict[str, int] = field(default_factory=dict)

    def add(self, seed: int, outcome: str) -> None:
        """Count a try."""
        self.tries += 1
        if outcome == "accepted":
            self.accepted += 1
        elif outcome == "refused":
            self.refused += 1
        else:
            self.failures[outcome] += 1
            self.examples.setdefault(outcome, seed)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "tries": self.tries,
            "accepted": self.accepted,
            "refused": self.refused,
            "failures": dict(self.failures),
            "first_seeds": self.examples,
        }


def attempt(target: Target, original: bytes, path: Path, seed: int) -> str:
    """Mutate the file, read it, and return how that ended."""
    rng = random.Random(f"{target.name} {seed}")
    path.write_bytes(rng.choice(target.mutators)(original, rng))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(path)
    except (ValueError, OSError) as error:
        # Subclasses that Python itself raises deep inside are no answers.
        if type(error) in (UnicodeDecodeError, UnicodeEncodeError):
            return _where(error)
        return "refused" if "\n" not in str(error) else f"several lines: {_where(error)}"
    except MemoryError as error:
        return f"memory: {_where(error)}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
        return _where(error)
    return "accepted"


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "fastcaps" in frame.filename] or frames
    return f"{type(error).__name__} in {Path(own[-1].filename).name}:{own[-1].name}"


def run(target: Target, seeds: Sequence[int], observe: Callable[[int], None] = lambda tries: None) -> Summary:
    """Run tries in processes with limits."""
    summary = Summary()
    for start in range(0, len(seeds), CHUNK):
        chunk = seeds[start : start + CHUNK]
        outcomes = _in_process(target, chunk)
        for seed in chunk[len(outcomes) :]:
            # The one that ended the process, and those after it.
            outcomes += _in_process(target, [seed]) or [_DIED]
        for seed, outcome in zip(chunk, outcomes, strict=True):
            summary.add(seed, outcome)
        observe(len(chunk))
    return summary


_DIED = "hang or crash"


def _in_process(target: Target, seeds: Sequence[int]) -> list[str]:
    """Return the outcomes of tries in one process, as far as it came."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(target, seeds, sender))
    process.start()
    sender.close()
    outcomes: list[str] = []
    while receiver.poll(SECONDS + 10):
        try:
            outcomes.append(receiver.recv())
        except EOFError:
            break
    process.kill()
    process.join()
    return outcomes


def _work(target: Target, seeds: Sequence[int], sender: Any) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        path = target.prepare(Path(folder))
        original = path.read_bytes()
        for seed in seeds:
            if target.writes:
                place = Path(folder) / str(seed)
                place.mkdir()
                path = target.prepare(place)
            # Kills the process, also where Python code doesn't run.
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            sender.send(attempt(target, original, path, seed))
            signal.setitimer(signal.ITIMER_REAL, 0)
    sender.close()

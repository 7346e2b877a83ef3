"""Engines in processes of their own, which take turns on request: none shares memory or threads with another."""

import multiprocessing
import signal
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import final

import torch

from fastcaps.benchmark.engines import Networks, engine, some_images
from fastcaps.benchmark.measure import timed_turn

# Seconds that a process gets to end by itself.
_PATIENCE = 5.0


@final
class EngineProcess:
    """An engine in a process of its own, until `close`."""

    def __init__(self, name: str, networks: Networks, threads: int) -> None:
        """Start the process.

        Args:
            name: name of the engine.
            networks: the networks that it runs.
            threads: number of CPU threads.
        """
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, name, networks, threads), daemon=True)
        self._process.start()
        other.close()

    def turn(self, batch: int, least: float) -> float:
        """Return the seconds per call of a turn on ``batch`` images, which takes at least ``least`` seconds."""
        try:
            self._pipe.send((batch, least))
            return float(self._pipe.recv())
        except (EOFError, OSError):
            self._process.join(30)  # on a busy machine the pipe closes seconds before the process ends
            code = self._process.exitcode
            raise ValueError(
                f"the process of the engine {self.name!r} ended with exit code {code}: see above what it said, or "
                "measure with isolated=False"
            ) from None

    def close(self) -> None:
        """End the process, after its turn if it is in the middle of one."""
        with suppress(OSError):
            self._pipe.send(None)
        self._pipe.close()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _serve(pipe: Connection, name: str, networks: Networks, threads: int) -> None:
    """Take turns until None is received, or the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one closes this one
    torch.set_grad_enabled(False)
    torch.set_num_threads(threads)
    own = engine(name, networks, threads)
    with suppress(EOFError, OSError):
        while (request := pipe.recv()) is not None:
            batch, least = request
            pipe.send(timed_turn(partial(own.run, some_images(networks.config, batch)), least))

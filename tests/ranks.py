"""Real processes on this machine: ranks that run a function, and commands under torchrun."""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fastcaps.distributed import World, init_distributed


def in_ranks(size: int, function: Callable[..., None], *arguments: Any, codes: Sequence[int] | None = None) -> None:
    """Call ``function(world, *arguments)`` in so many processes; all must succeed, or end with these exit codes."""
    port = free_port()
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_rank, args=(rank, size, port, function, arguments), daemon=True) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == list(codes or [0] * size)


def _rank(rank: int, size: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    with init_distributed() as world:
        function(world, *arguments)


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def alone(function: Callable[..., None], *arguments: Any) -> None:
    """Call the same function here, with one thread as a rank has."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    function(World(), *arguments)
    torch.set_num_threads(threads)


def torchrun(size: int, *arguments: Any, restarts: int = 0, **options: Any) -> subprocess.Popen[str]:
    """Start ``fastcaps`` with these arguments in so many processes, as a user does."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    launcher += ["--max-restarts", str(restarts), "-m"]
    if "--master" in arguments:
        launcher.append("--")  # torchrun takes it for one of its own, as docs/scaling.md says
    return subprocess.Popen(
        [sys.executable, *launcher, "fastcaps", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


def done(process: subprocess.Popen[str], succeeds: bool = True) -> tuple[str, str]:
    """What a job printed to stdout and stderr, when it has ended."""
    out, err = process.communicate(timeout=300)
    assert (process.returncode == 0) == succeeds, err
    return out, err

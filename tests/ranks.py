"""Real processes on this machine: functions, ranks that share one, and commands under torchrun.

They are forked from a server that has imported PyTorch, so that none of them has to.
"""

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastcaps.distributed import World, init_distributed

# Seconds until a test gives up; nothing that works takes nearly as long.
DEADLINE = 300
_context = multiprocessing.get_context("forkserver")
# torch._dynamo is what the first optimizer imports.
_context.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.run", "pytest", "fastcaps.cli", "fastcaps.training.trainer"]
)


class Child:
    """A function in a process of its own; ``stdout`` can be read while it runs."""

    def __init__(self, function: Callable[..., None], *arguments: Any, cwd: Path | None = None) -> None:
        reader, writer = _context.Pipe(duplex=False)
        self._errors = tempfile.NamedTemporaryFile("r+")  # noqa: SIM115 (open as long as the process)
        settings = (writer, self._errors.name, dict(os.environ), str(cwd or Path.cwd()))
        self._process = _context.Process(target=_child, args=(*settings, function, arguments), daemon=True)
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()))
        reader.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true of a process that must not end before."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert self._process.is_alive(), self.wait()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def wait(self) -> tuple[int | None, str, str]:
        """Return the exit code, the rest of stdout and all of stderr when the process has ended."""
        guard = threading.Timer(DEADLINE, self._process.kill)
        guard.start()
        with self.stdout, self._errors:
            out = self.stdout.read()
            self._process.join(DEADLINE)
            guard.cancel()
            return self._process.exitcode, out, self._errors.read()

    def succeed(self) -> tuple[str, str]:
        """Return stdout and stderr of a process that must not fail."""
        code, out, err = self.wait()
        assert code == 0, err
        return out, err

    def fail(self) -> tuple[str, str]:
        """Return stdout and stderr of a process that must fail."""
        code, out, err = self.wait()
        assert code != 0, out
        return out, err


def _child(
    out: Any, errors: str, environment: dict[str, str], cwd: str, function: Callable[..., None], arguments: Any
) -> None:
    if sys.platform == "linux":
        # It ends with the server that forked it, which ends with the tests.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    # A job in the background of a shell ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(out.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    function(*arguments)


def in_ranks(size: int, function: Callable[..., None], *arguments: Any, codes: Sequence[int] | None = None) -> None:
    """Call ``function(world, *arguments)`` in so many processes; all must succeed, or end with these exit codes."""
    port = free_port()
    children = [Child(_rank, rank, size, port, function, arguments) for rank in range(size)]
    ends = [child.wait() for child in children]
    assert [code for code, _, _ in ends] == list(codes or [0] * size), "".join(err for _, _, err in ends)


def _rank(rank: int, size: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    _place(rank, size, port)
    with init_distributed() as world:
        function(world, *arguments)


def _place(rank: int, size: int, port: int) -> None:
    """Set the variables that a launcher sets."""
    import torch

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))


def launch(size: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in so many processes that find a store here, as those of torchrun find its own."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children = [Child(_launched, rank, size, store.port, function, arguments) for rank in range(size)]
    for child in children:
        child.succeed()


def _launched(rank: int, size: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    _place(rank, size, port)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    function(*arguments)


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


def command(*arguments: Any) -> Child:
    """Start ``fastcaps`` with these arguments."""
    return Child(_command, [str(argument) for argument in arguments])


def _command(arguments: list[str]) -> None:
    import torch

    from fastcaps.cli import main

    torch.set_num_threads(1)
    sys.argv = ["fastcaps", *arguments]
    main()


def torchrun(size: int, *arguments: Any, restarts: int = 0) -> Child:
    """Start ``fastcaps`` with these arguments in so many processes, as a user does."""
    launcher = ["--standalone", "--nproc-per-node", str(size), "--max-restarts", str(restarts), "-m"]
    return Child(_torchrun, [*launcher, "fastcaps", *map(str, arguments)])


def _torchrun(arguments: list[str]) -> None:
    from torch.distributed.run import main

    os.environ["OMP_NUM_THREADS"] = "1"
    main(arguments)

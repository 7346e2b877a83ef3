"""The resources that this process may use, within the limits of a container or a batch system."""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_ROOT = Path("/")
# Assumed free memory if the system doesn't report it.
_UNKNOWN = 4 * 2**30
# Parameters of mallopt: no mappings of their own for large blocks (M_MMAP_MAX), keep free memory (M_TRIM_THRESHOLD),
# and grow by 64 MB at a time (M_TOP_PAD).
_KEEP_MEMORY = {-4: 0, -1: -1, -2: 64 * 2**20}
_VECTORS = (
    *("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "sve", "i8mm"),
)
# Files with the memory limit and the used memory, and the name of reclaimable page cache in memory.stat: for version 2
# of control groups, and for version 1.
_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Machine:
    """The machine of a computation: the processor, and the number of cores that could be used."""

    processor: str
    cores: int

    @classmethod
    def this(cls) -> Self:
        """Return this machine."""
        return cls(processor_name(), processors())


def out_of_memory_message(error: Exception) -> str | None:
    """Return advice for an out-of-memory error; None for another error."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
        return "this needs more memory than there is: choose a smaller network, smaller images or a smaller batch"
    return None


def reuse_memory() -> bool:
    """Have this process keep freed memory for its next tensors; return whether the C library can do so.

    By default, large tensors get new memory from the system in every step, which clears it page by page. A process that
    reuses memory never gives it back.
    """
    if not sys.platform.startswith("linux"):
        return False
    # glibc's; musl has no mallopt.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(parameter, value) == 1 for parameter, value in _KEEP_MEMORY.items())


def usable_devices(root: Path = _ROOT) -> list[str]:
    """Return the usable PyTorch devices for messages: from PyTorch if it is loaded, otherwise guessed.

    Args:
        root: root of the file system in which drivers are detected.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    else:
        cuda = (root / "dev/nvidiactl").exists() or (root / "Windows/System32/nvcuda.dll").exists()
        mps = sys.platform == "darwin" and platform.machine() == "arm64"
    return ["auto", "cpu", *(["cuda"] if cuda else []), *(["mps"] if mps else [])]


def processor_name(root: Path = _ROOT) -> str:
    """Return the name of the processor.

    Args:
        root: root of the file system with the information of Linux.
    """
    lines = _text(root / "proc/cpuinfo").splitlines()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def processor_vendor(root: Path = _ROOT) -> str:
    """Return the vendor of the processor in ``/proc/cpuinfo``, such as ``"GenuineIntel"``; empty if it is not known.

    Args:
        root: root of the file system with the information of Linux.
    """
    lines = _text(root / "proc/cpuinfo").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("vendor_id")), "")


def instruction_sets(root: Path = _ROOT) -> tuple[str, ...]:
    """Return the vector instructions of the processor that matter for the speed of networks, as Linux calls them.

    Args:
        root: root of the file system with the information of Linux.
    """
    lines = _text(root / "proc/cpuinfo").splitlines()
    flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split(":", 1)[1].split()}
    return tuple(name for name in _VECTORS if name in flags)


def processors(root: Path = _ROOT) -> int:
    """Return the number of processors that this process may use, often fewer than the machine has.

    Args:
        root: root of the file system with the CPU limits of control groups.
    """
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for group in _groups(root, "cpu"):
        share = _text(group / "cpu.max").split()
        share = share or [_text(group / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        if share[0].isdecimal():  # "max" and −1 stand for no limit
            limits.append(max(1, -(-int(share[0]) // int(share[1]))))
    return min(limits)


def free_bytes(root: Path = _ROOT) -> int:
    """Return the memory that is free on the machine, or within the limits of this process.

    Args:
        root: root of the file system with the information of Linux.
    """
    limits = []
    information = root / "proc/meminfo"
    if information.exists():
        lines = dict(line.split(":", 1) for line in information.read_text().splitlines())
        limits.append(int(lines["MemAvailable"].split()[0]) * 1024)
    for group in _groups(root, "memory"):
        for limit, used, cached in _MEMORY:
            text = _text(group / limit).strip()
            if text.isdecimal():  # "max" stands for no limit
                numbers = dict(line.split() for line in _text(group / "memory.stat").splitlines())
                free = int(text) - int(_text(group / used)) + int(numbers.get(cached, 0))
                limits.append(max(0, free))
    return min(limits, default=_UNKNOWN)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, each before its parent."""
    own = {"": "/", controller: "/"}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        # Version 2 has no name; groups outside the container can't be read.
        for name in set(names.split(",")) & set(own) if ".." not in path else ():
            own[name] = path
    for name, path in own.items():
        outermost = root / "sys/fs/cgroup" / name
        folder = outermost / path.strip("/")
        while folder != outermost:
            yield folder
            folder = folder.parent
        yield outermost


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""

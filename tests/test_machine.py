"""What a process may use, as Linux tells it in files, and how it uses memory."""

import ctypes
import platform
import subprocess
import sys

import pytest

from fastcaps._machine import free_bytes, instruction_sets, processor_name, processor_vendor, processors, reuse_memory


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def test_here():
    assert processors() >= 1
    assert free_bytes() > 0


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({}, 64),
    ],
)
def test_a_containers_share_of_the_processors(tmp_path, monkeypatch, write, files, share):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    for name, text in files.items():
        write(f"sys/fs/cgroup/{name}", text)
    assert processors(tmp_path) == share


def test_what_the_processor_calls_itself(tmp_path, write):
    assert processor_name()
    assert processor_name(tmp_path) == (platform.processor() or platform.machine())
    write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some Processor @ 2.80GHz\nmodel name\t: Other\n")
    assert processor_name(tmp_path) == "Some Processor @ 2.80GHz"


def test_the_vendor_of_the_processor(tmp_path, write):
    assert processor_vendor(tmp_path) == ""
    write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\nprocessor\t: 1\nvendor_id\t: Other\n")
    assert processor_vendor(tmp_path) == "AuthenticAMD"


def test_what_is_free(tmp_path, write):
    assert free_bytes(tmp_path) == 4 * 2**30  # nothing is known
    write("proc/meminfo", "MemTotal:  9000000 kB\nMemAvailable:   8000000 kB\n")
    assert free_bytes(tmp_path) == 8_000_000 * 1024
    write("proc/meminfo", "MemTotal:  9000000 kB\nMemAvailable:   5000 kB\n")
    assert free_bytes(tmp_path) == 5000 * 1024
    write("sys/fs/cgroup/memory.max", "max\n")
    assert free_bytes(tmp_path) == 5000 * 1024
    write("sys/fs/cgroup/memory.max", "3000000\n")
    write("sys/fs/cgroup/memory.current", "2900000\n")
    write("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 50000\n")
    assert free_bytes(tmp_path) == 150_000
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n")
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", "999000\n")
    write("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 20\n")
    assert free_bytes(tmp_path) == 1020


@pytest.mark.parametrize(
    ("listed", "own"),
    [
        ("0::/system.slice/job_7/step_0\n", "sys/fs/cgroup/system.slice/job_7"),
        ("12:cpu,cpuacct:/elsewhere\n5:memory:/slurm/job_7/step_0\n", "sys/fs/cgroup/memory/slurm/job_7"),
    ],
)
def test_the_limit_of_a_job_is_found_where_its_group_is(tmp_path, write, listed, own):
    write("proc/self/cgroup", listed)
    write("proc/meminfo", "MemAvailable:   5000 kB\n")
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if "memory:" in listed else ("memory.max", "memory.current")
    )
    for name, number in zip(names, (3000, 1000), strict=True):
        write(f"{own}/{name}", f"{number}\n")
    assert free_bytes(tmp_path) == 2000


def test_a_group_that_cant_be_seen_from_within(tmp_path, write):
    write("proc/self/cgroup", "0::/../../outside\n")
    write("sys/fs/cgroup/memory.max", "700\n")
    write("sys/fs/cgroup/memory.current", "100\n")
    assert free_bytes(tmp_path) == 600


def test_vector_instructions(tmp_path, write):
    write("proc/cpuinfo", "processor : 0\nflags\t\t: fpu avx2 fma sse avx512f\n")
    assert instruction_sets(tmp_path) == ("avx2", "fma", "avx512f")
    write("proc/cpuinfo", "Features : fp asimd crc32\n")
    assert instruction_sets(tmp_path) == ("asimd",)
    assert instruction_sets(tmp_path / "elsewhere") == ()


FAULTS = """
import resource, sys
from fastcaps._machine import reuse_memory
assert sys.argv[1] != "reuse" or reuse_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        b"x" * 2**26
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallopt"), reason="no glibc"
)
def test_freed_memory_is_used_again():
    new, used_again = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)
        for how in ("default", "reuse")
    )
    assert used_again < 20 < new


def test_memory_where_there_is_no_glibc(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not reuse_memory()
    monkeypatch.setattr("sys.platform", "darwin")
    assert not reuse_memory()

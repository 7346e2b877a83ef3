"""The server under load, beside batches of 1 and FastAPI with dynamic routing; overload, SIGTERM, hostile requests.

``python -m benchmarks serving`` takes some minutes. It starts every server itself, one at a time, and stops.
"""

import asyncio
import io
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.request import urlopen

from PIL import Image

from benchmarks.hostile import attack, hostile_requests
from benchmarks.http_load import Load, run_load
from benchmarks.printing import table
from fastcaps.bundled import ONNX, resolve
from fastcaps.data.files import EMBEDDED
from fastcaps.data.idx import decode
from fastcaps.serving import open_model

CLIENTS, REQUESTS = 1_000, 20_000
# Number of requests for slower servers.
FEWER = 2_000
HOSTILE = 10_000
# The compressed network, served under the name of the other.
COMPRESSED = "mnist=mnist-small"
PREDICT = "/v1/models/mnist/predict"
SERVE = [sys.executable, "-m", "fastcaps", "serve", "mnist", "--port", "0", "--no-page"]
FASTAPI = [sys.executable, "-m", "benchmarks.serving_fastapi"]


class Server(NamedTuple):
    """A process that serves."""

    process: subprocess.Popen[str]
    address: str

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        with urlopen(f"{self.address}/metrics") as response:
            [value] = re.findall(rf"^{name} (\S+)$", response.read().decode(), re.MULTILINE)
        return float(value)


@contextmanager
def server(command: Sequence[str], **options: Any) -> Iterator[Server]:
    """Start a server that prints its address, and stop it afterwards; options as for `subprocess.Popen`."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        assert process.stdout is not None
        try:
            yield Server(process, process.stdout.readline().split()[-1].removesuffix("/v1/models"))
        finally:
            process.kill()


def main() -> None:
    digits = pictures()
    expected = serial(digits)
    loads: dict[str, Load] = {}
    memory = []
    with server([*SERVE, "--queue", "2000", "--timeout", "60"]) as running:
        for requests in (FEWER, REQUESTS - FEWER):
            load = loads["fastcaps serve, batches of up to 32"] = loaded(running.address, digits, requests)
            memory.append(running.metric("process_resident_memory_bytes") / 1e6)
            assert wrong(load, expected) == 0
    with server([*SERVE, "--queue", "2000", "--max-batch", "1", "--timeout", "60"]) as running:
        load = loads["fastcaps serve, batches of 1"] = loaded(running.address, digits, FEWER)
        assert wrong(load, expected) == 0
    with server(
        [*(word.replace("mnist", COMPRESSED) for word in SERVE), "--queue", "2000", "--timeout", "60"]
    ) as running:
        load = loads["fastcaps serve, the compressed network"] = loaded(running.address, digits, REQUESTS // 2)
        assert wrong(load, serial(digits, COMPRESSED)) == 0
    with server(FASTAPI) as running:
        plain_load = asyncio.run(run_load(running.address, "/predict", digits, requests=FEWER // 2, clients=CLIENTS))
        loads["FastAPI, PyTorch, dynamic routing"] = plain_load
    print(f"{CLIENTS:,} clients at once on this machine; every answer of fastcaps serve equals the serial one\n")
    columns = ["", "requests", "per second", "p50, ms", "p95, ms", "p99, ms"]
    table(columns, [row(title, load) for title, load in loads.items()])
    batched, single, compressed, plain = (load.per_second for load in loads.values())
    print(f"\nFastAPI did not take {plain_load.unsent:,} requests and lost {plain_load.lost:,}")
    print(f"{batched / single:.1f} times batches of 1, {batched / plain:.1f} times FastAPI with dynamic routing")
    print(f"the compressed network: {compressed / plain:.1f} times FastAPI with dynamic routing")
    print(f"memory after {FEWER:,} requests {memory[0]:.0f} MB, after {REQUESTS:,} {memory[1]:.0f} MB", flush=True)
    overload(digits)
    terminate(digits, expected)
    fuzz(digits)


def loaded(address: str, digits: Sequence[bytes], requests: int) -> Load:
    """Send requests from all clients; none may be lost."""
    load = asyncio.run(run_load(address, PREDICT, digits, requests=requests, clients=CLIENTS))
    assert load.lost == load.unsent == 0, load
    assert not load.refused, load.refused
    return load


def overload(digits: Sequence[bytes]) -> None:
    """Overload a short queue: requests that don't fit are refused at once."""
    with server([*SERVE, "--queue", "64"]) as running:
        load = asyncio.run(run_load(running.address, PREDICT, digits, requests=5_000, clients=CLIENTS, retry=False))
    assert load.lost == load.unsent == 0, load
    assert len(load.answers) + load.refused.get(503, 0) == 5_000, load.refused
    print(f"overload: {len(load.answers):,} answered, {load.refused.get(503, 0):,} refused with 503, none lost")


def terminate(digits: Sequence[bytes], expected: Sequence[list[float]]) -> None:
    """Send SIGTERM under load."""
    with server([*SERVE, "--queue", "2000", "--timeout", "60"]) as running:
        threading.Timer(2.0, running.process.send_signal, (signal.SIGTERM,)).start()
        load = asyncio.run(run_load(running.address, PREDICT, digits, requests=REQUESTS, clients=CLIENTS))
        code = running.process.wait(90)
    assert (load.lost, load.refused, code) == (0, {}, 0), (load.lost, load.refused, code)
    assert wrong(load, expected) == 0
    print(
        f"SIGTERM: {len(load.answers):,} accepted and answered, {load.unsent:,} never accepted, none lost, exit code 0"
    )


def fuzz(digits: Sequence[bytes]) -> None:
    """Send hostile requests, then an ordinary one."""
    requests = hostile_requests(digits, PREDICT, HOSTILE, seed=0)
    outcomes: Counter[str] = Counter()
    # The exported file alone, so that no request loads PyTorch, which would look like growth.
    file = f"mnist={resolve('mnist') / ONNX}"
    with server([file if word == "mnist" else word for word in SERVE]) as running:
        memory = []
        for part in range(5):
            outcomes += asyncio.run(attack(running.address, requests[part::5]))
            memory.append(running.metric("process_resident_memory_bytes") / 1e6)
            assert "500" not in outcomes, outcomes
            assert "hangs" not in outcomes, outcomes
        files = running.metric("process_open_fds")
        after = asyncio.run(run_load(running.address, PREDICT, digits, requests=10, clients=1))
        running.process.terminate()
        assert running.process.wait(90) == 0
        assert running.process.stderr is not None
        errors = running.process.stderr.read()
    assert len(after.answers) == 10
    assert not errors, errors
    statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(outcomes.items()))
    print(f"{HOSTILE:,} hostile requests: no 500, no traceback, no hang; {statuses}")
    megabytes = ", ".join(f"{value:.0f}" for value in memory)
    print(f"memory after each fifth of them: {megabytes} MB; {files:.0f} open files")


def pictures() -> list[bytes]:
    """Return test images of MNIST as PNG files."""
    path = EMBEDDED / "mnist" / "t10k-images-idx3-ubyte.gz"
    files = []
    for image in decode(path.read_bytes(), path.name, 3)[:100]:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        files.append(file.getvalue())
    return files


def serial(digits: Sequence[bytes], network: str = "mnist") -> list[list[float]]:
    """Return the lengths of each picture, computed one by one without a server."""
    import numpy as np

    lengths = open_model(network, threads=1, pytorch=False).lengths("fast")
    images = [np.asarray(Image.open(io.BytesIO(digit)))[None, None] for digit in digits]
    return [lengths(image)[0].tolist() for image in images]


def wrong(load: Load, expected: Sequence[list[float]]) -> int:
    """Return how many answers differ from the serial ones in any bit."""
    return sum(
        document["images"][0]["fast"]["lengths"] != expected[number % len(expected)]
        for number, document in load.answers
    )


def row(title: str, load: Load) -> list[str]:
    """Return a line of the table."""
    percentiles = [f"{load.percentile(percent):,.0f}" for percent in (50, 95, 99)]
    return [title, f"{len(load.answers):,}", f"{load.per_second:,.0f}", *percentiles]

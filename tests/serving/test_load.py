"""Many clients at once: every answer is the serial one, overload is refused, SIGTERM loses nothing."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from benchmarks.http_load import run_load
from tests.serving.conftest import PREDICT, request

from fastcaps.serving import Settings, background


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``fastcaps serve mnist`` in a process of its own, and its address."""
    command = [sys.executable, "-m", "fastcaps", "serve", "mnist", "--port", "0", "--no-page", "--threads", "1"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, server.stdout.readline().split()[-1].removesuffix("/v1/models")
        finally:
            server.kill()


def check(load, serial):
    """Every answer is bit for bit what the network says without a server."""
    for number, document in load.answers:
        assert document["images"][0]["fast"]["lengths"] == serial[number % len(serial)]


def test_many_clients_get_the_serial_answers(mnist, digits, serial):
    with background({"mnist": mnist}, Settings(queue=128)) as address:
        load = asyncio.run(run_load(address, PREDICT, digits, requests=300, clients=100))
        text = request(address, "GET", "/metrics").content.decode()
    assert (len(load.answers), load.lost, load.refused, load.unsent) == (300, 0, {}, 0)
    check(load, serial)
    [calls] = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("fastcaps_batch_images_count")]
    assert calls < 300 / 4


def test_overload_is_refused_with_a_time_to_come_back(mnist, digits, serial):
    with background({"mnist": mnist}, Settings(queue=8, max_images=8, max_batch=4)) as address:
        load = asyncio.run(run_load(address, PREDICT, digits, requests=200, clients=64, retry=False))
        assert load.lost == load.unsent == 0
        assert set(load.refused) == {503}
        assert len(load.answers) + load.refused[503] == 200
        check(load, serial)
        again = asyncio.run(run_load(address, PREDICT, digits, requests=30, clients=30))
    assert len(again.answers) == 30


def test_a_request_that_waits_too_long_is_told(mnist, digits):
    with background({"mnist": mnist}, Settings(timeout=0.001)) as address:
        response = request(address, "POST", PREDICT, digits[0])
    assert response.status == 504
    assert response.json["error"] == "there was no answer within 0.001 s: try again"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM")
def test_sigterm_loses_nothing(digits, serial):
    with process("--queue", "300") as (server, address):
        timer = threading.Timer(0.5, os.kill, (server.pid, signal.SIGTERM))
        timer.start()
        load = asyncio.run(run_load(address, PREDICT, digits, requests=3000, clients=200))
        assert server.wait(30) == 0
        assert server.stderr is not None
        assert server.stderr.read() == ""
    assert load.lost == 0
    assert load.refused == {}
    assert len(load.answers) + load.unsent == 3000
    assert load.unsent
    check(load, serial)

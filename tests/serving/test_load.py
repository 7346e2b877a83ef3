"""Many clients at once: every answer is the serial one, overload is refused, SIGTERM loses nothing."""

import asyncio
import signal
import sys
import threading

import pytest
from benchmarks.hostile import attack, hostile_requests
from benchmarks.http_load import run_load
from benchmarks.serving import SERVE, server
from tests.serving.conftest import PREDICT, request

from fastcaps.serving import Settings, background


def check(load, serial):
    """Every answer is bit for bit what the network says without a server."""
    for number, document in load.answers:
        assert document["images"][0]["fast"]["lengths"] == serial[number % len(serial)]


@pytest.mark.slow
def test_many_clients_get_the_serial_answers(mnist, digits, serial):
    with background({"mnist": mnist}, Settings(queue=128)) as address:
        load = asyncio.run(run_load(address, PREDICT, digits, requests=300, clients=100))
        text = request(address, "GET", "/metrics").content.decode()
    assert (len(load.answers), load.lost, load.refused, load.unsent) == (300, 0, {}, 0)
    check(load, serial)
    [calls] = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("fastcaps_batch_images_count")]
    assert calls < 300 / 4


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM")
def test_sigterm_loses_nothing(digits, serial):
    with server([*SERVE, "--threads", "1", "--queue", "300"]) as running:
        threading.Timer(0.5, running.process.send_signal, (signal.SIGTERM,)).start()
        load = asyncio.run(run_load(running.address, PREDICT, digits, requests=3000, clients=200))
        assert running.process.wait(60) == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""
    assert load.lost == 0
    assert load.refused == {}
    assert len(load.answers) + load.unsent == 3000
    assert load.unsent
    check(load, serial)


@pytest.mark.slow
def test_hostile_requests_are_refused_and_leave_nothing_behind(digits, serial):
    with server([*SERVE, "--threads", "1"]) as running:
        outcomes = asyncio.run(attack(running.address, hostile_requests(digits, PREDICT, 120, seed=1)))
        after = asyncio.run(run_load(running.address, PREDICT, digits, requests=5, clients=1))
        running.process.terminate()
        assert running.process.wait(60) == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""
    assert not {"500", "hangs"} & set(outcomes), outcomes
    assert {"400", "413", "422"} <= set(outcomes)
    assert len(after.answers) == 5
    check(after, serial)


def test_slow_senders_are_cut_off(mnist, digits):
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc" % PREDICT.encode()

    async def answer(address):
        reader, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
        writer.write(head)
        content = await reader.read()
        writer.close()
        return content

    with background({"mnist": mnist}, Settings(body_timeout=0.2)) as address:
        assert b"408 Request Timeout" in asyncio.run(answer(address))
        assert request(address, "POST", PREDICT, digits[0]).status == 200


def test_endless_headers_are_cut_off(address):
    async def send():
        _, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
        sent = 0
        writer.write(b"GET / HTTP/1.1\r\n")
        try:
            while sent < 10**8:
                writer.write(b"X-More: " + b"x" * 10_000 + b"\r\n")
                await writer.drain()
                sent += 10_000
        except ConnectionError:
            pass
        finally:
            writer.close()
        return sent

    assert asyncio.run(send()) < 10**7

"""Engines in processes of their own."""

import dataclasses
import multiprocessing

import pytest
import torch

from fastcaps.benchmark import engines, inference
from fastcaps.benchmark.processes import EngineProcess
from fastcaps.benchmark.settings import Settings

pytestmark = pytest.mark.slow
QUICK = Settings.quick()


def test_all_engines_take_turns_in_processes(monkeypatch):
    names = (engines.PLAIN, engines.COMPRESSED)
    monkeypatch.setattr(inference, "installed_engines", lambda: names)
    started: list[str] = []

    def start(name, networks, threads):
        started.append(name)
        return EngineProcess(name, networks, threads)

    monkeypatch.setattr(inference, "EngineProcess", start)
    settings = dataclasses.replace(QUICK, isolated=True, batches=(2,), growth={})
    with torch.no_grad():
        result = inference.bench(settings)
    assert started == [engines.PLAIN, *names]
    assert multiprocessing.active_children() == []
    assert [(row.engine, row.batch) for row in result.engines] == [(name, 2) for name in names]
    assert all(row.ms_per_image > 0 for row in result.engines)
    assert [row.batch for row in result.disturbance] == [2]
    assert "engines take turns, in processes of their own" in " ".join(result.sentences())


def test_an_interrupt_in_the_middle_leaves_no_process(monkeypatch):
    monkeypatch.setattr(inference, "installed_engines", lambda: (engines.PLAIN, engines.COMPRESSED))
    turn, turns = EngineProcess.turn, []

    def interrupted(process, batch, least):
        turns.append(process.name)
        if process.name == engines.COMPRESSED:
            assert len(multiprocessing.active_children()) == 2
            raise KeyboardInterrupt
        return turn(process, batch, least)

    monkeypatch.setattr(EngineProcess, "turn", interrupted)
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        inference.bench(dataclasses.replace(QUICK, isolated=True, batches=(2,), growth={}))
    assert turns.count(engines.COMPRESSED) == 1
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_is_told():
    process = EngineProcess("nothing", QUICK.networks, 1)
    with pytest.raises(ValueError, match="the process of the engine 'nothing' ended with exit code 1: see above"):
        process.turn(1, 0.0)
    process.close()
    assert multiprocessing.active_children() == []

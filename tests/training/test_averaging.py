"""Averaged weights are those of a plain loop, and survive whatever stops a run."""

import dataclasses

import pytest
import torch
from tests.training.conftest import make_data, small_config
from tests.training.test_trainer import same, trainer, untimed, weights
from torch import nn

from fastcaps.nn.averaging import WeightAverage
from fastcaps.training import Run, TrainSettings
from fastcaps.training.accuracy import count_correct


def loop(states, keep):
    """The average after each step, number by number."""
    average = [number.item() for number in states[0]]
    for step, state in enumerate(states[1:]):
        share = min(keep, (1 + step) / (10 + step))
        average = [share * mean + (1 - share) * number.item() for mean, number in zip(average, state, strict=True)]
    return torch.tensor(average, dtype=torch.float64)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_the_average_is_that_of_the_loop(keep):
    network = nn.BatchNorm1d(3).double()
    average, states = WeightAverage(network, keep), [network.state_dict()["running_mean"].clone()]
    torch.manual_seed(0)
    for step in range(30):
        network(torch.randn(8, 3, dtype=torch.float64))
        average.update(step)
        states.append(network.state_dict()["running_mean"].clone())
    torch.testing.assert_close(average.state["running_mean"], loop(states, keep))
    assert average.state["num_batches_tracked"] == 30
    with average.applied():
        assert torch.equal(network.state_dict()["running_mean"], average.state["running_mean"])
    assert torch.equal(network.state_dict()["running_mean"], states[-1])


def test_the_averaged_network_is_measured_and_saved(data, config, tmp_path):
    states: list[torch.Tensor] = []

    def keep_weights(report=None):
        states.append(run.model.routing.weight.detach().flatten().clone())

    run = trainer(data, config, tmp_path, keep_weights, epochs=3, averaging=0.8, test_every=1)
    keep_weights()
    history = run.fit()
    assert len(states) == 10
    saved = Run.open(tmp_path).model()
    torch.testing.assert_close(saved.routing.weight.double().flatten(), loop(states, 0.8), atol=1e-6, rtol=1e-5)
    assert not torch.equal(saved.routing.weight.flatten(), states[-1])
    assert history[-1].test_accuracy == count_correct(saved, data.test, data.augmentation.test_view) / len(data.test)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"validation": 12, "whiten_stem": True},
        {"dynamic_epochs": 1},
        {"dynamic_epochs": 1, "reinit": True, "primary_rate": 0.1, "whiten_stem": True},
    ],
)
def test_a_stopped_run_ends_with_the_same_average(tmp_path, changes):
    config = dataclasses.replace(small_config(), batch_norm=True)

    class StoppedError(Exception):
        pass

    def stop(report):
        if (report.epoch, report.step, report.task) == (2, 2, "training"):
            raise StoppedError

    def make(folder, observe=lambda report: None):
        return trainer(make_data(), config, tmp_path / folder, observe, averaging=0.9, checkpoint_every=1, **changes)

    whole = make("whole").fit()
    with pytest.raises(StoppedError):
        make("stopped", stop).fit()
    assert untimed(make("stopped").fit(resume=True)) == untimed(whole)
    assert same(weights(tmp_path / "whole" / "model"), weights(tmp_path / "stopped" / "model"))
    plain = trainer(make_data(), config, tmp_path / "plain", **changes)
    plain.fit()
    assert not same(weights(tmp_path / "whole" / "model"), weights(tmp_path / "plain" / "model"))
    with pytest.raises(ValueError, match="averaging was 0.9, now 0.0"):
        trainer(make_data(), config, tmp_path / "whole", **changes).fit(resume=True)


@pytest.mark.parametrize("averaging", [-0.1, 1.0, float("nan")])
def test_shares_that_cannot_be_kept(averaging):
    with pytest.raises(ValueError, match=r"averaging is \S+, expected a share of at least 0 and below 1"):
        TrainSettings(averaging=averaging)

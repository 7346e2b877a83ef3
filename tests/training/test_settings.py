"""Settings: the learning rate's course, the defaults, what is refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcaps.data import load
from fastcaps.training import TrainSettings


@given(st.integers(2, 5000), st.integers(0, 200), st.floats(1e-3, 1))
def test_the_rate_rises_then_decays_exponentially(steps, warmup, final):
    settings = TrainSettings(learning_rate=0.5, warmup=warmup, final_rate=final)
    rates = [settings.rate(step, steps) for step in range(steps)]
    warmup = min(warmup, steps // 3)  # a short run doesn't spend itself on rising
    after = rates[warmup:]
    ratios = [b / a for a, b in pairwise(after)]
    assert all(ratio == pytest.approx(final ** (1 / (steps - 1))) for ratio in ratios)
    assert rates[-1] == pytest.approx(0.5 * final)
    if warmup > 1:
        assert rates[0] == pytest.approx(0.5 / warmup)


@given(st.integers(2, 5000), st.integers(0, 200), st.floats(1e-3, 1))
def test_a_cosine_falls_to_the_same_and_is_higher_in_between(steps, warmup, final):
    cosine, exponential = (
        TrainSettings(learning_rate=0.5, warmup=warmup, final_rate=final, decay=decay)
        for decay in ("cosine", "exponential")
    )
    rates = [cosine.rate(step, steps) for step in range(steps)]
    after = rates[min(warmup, steps // 3) :]
    assert all(a >= b for a, b in pairwise(after))
    assert rates[-1] == pytest.approx(0.5 * final)
    middle = cosine.rate(steps // 2, 2 * (steps // 2) + 1) / exponential.rate(steps // 2, 2 * (steps // 2) + 1)
    assert middle == pytest.approx((1 + final) / 2 / final**0.5)  # the arithmetic mean against the geometric


@given(st.integers(2, 500), st.floats(0, 1))
def test_a_linear_decay_is_a_straight_line(steps, final):
    settings = TrainSettings(learning_rate=0.5, warmup=0, final_rate=final, decay="linear")
    rates = [settings.rate(step, steps) for step in range(steps)]
    assert rates[0] == 0.5
    assert rates[-1] == pytest.approx(0.5 * final, abs=1e-12)
    assert all(a - b == pytest.approx(0.5 * (1 - final) / (steps - 1), abs=1e-9) for a, b in pairwise(rates))


def test_defaults_depend_on_the_data_set():
    assert TrainSettings.for_data("cifar10").epochs > TrainSettings.for_data("mnist").epochs
    assert TrainSettings.for_data("cifar10", epochs=2).epochs == 2
    assert TrainSettings.for_data("my images").epochs == TrainSettings().epochs
    assert TrainSettings(**load("digits").training) == TrainSettings.for_data("digits")


def test_defaults_for_finetuning():
    whole, routing = TrainSettings.finetune_defaults(), TrainSettings.finetune_defaults(routing_only=True)
    assert [(one.epochs, one.learning_rate, one.warmup) for one in (whole, routing)] == [(2, 2e-4, 0), (5, 3e-4, 0)]
    assert TrainSettings.finetune_defaults(routing_only=True, epochs=1).epochs == 1


def test_settings_of_runs_from_before_there_were_all():
    old = {"batch_size": 32, "reconstruction_weight": 0.1, "positive_margin": 0.8, "negative_margin": 0.2}
    old["negative_weight"] = 1.0
    assert TrainSettings.from_dict(old).loss_settings() == {**old, "loss": "margin", "sharpness": 20.0}
    assert TrainSettings.from_dict(old).decay == "exponential"
    refitted = TrainSettings(routing_only=True, reconstruction_weight=0.0)
    assert "reconstruction_weight" not in refitted.loss_settings()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0, expected a whole number, at least 1"),
        ({"batch_size": 1.5}, "batch_size is 1.5, expected a whole number, at least 1"),
        ({"seed": -1}, "seed is -1, expected a whole number, at least 0"),
        ({"seed": 2**63}, r"seed is 9223372036854775808, expected a whole number, at least 0, below 2\^63"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, expected a number above 0"),
        ({"primary_rate": 0.0}, "primary_rate is 0.0, expected a number above 0"),
        ({"final_rate": float("nan")}, "final_rate is nan, expected a number above 0"),
        ({"final_rate": 0.0}, "final_rate is 0.0, expected a number above 0"),
        ({"final_rate": -1.0, "decay": "linear"}, "final_rate is -1.0, expected a number, at least 0"),
        ({"decay": "steps"}, "decay is 'steps', expected one of exponential, cosine, linear"),
        ({"loss": "hinge"}, "loss is 'hinge', expected one of margin, cross_entropy"),
        ({"sharpness": 0.0}, "sharpness is 0.0, expected a number above 0"),
        ({"reconstruction_weight": -1.0}, "reconstruction_weight is -1.0, expected a number, at least 0"),
        ({"positive_margin": 0.1}, "the margins are 0.1 and 0.1: expected 0 ≤ negative < positive ≤ 1"),
        (
            {"routing_only": True, "reinit": True, "epochs": 3, "dynamic_epochs": 1},
            "routing_only=True keeps weights that reinit=True draws anew: give one of them",
        ),
        (
            {"distill": True, "epochs": 3, "dynamic_epochs": 1},
            "distill=True learns from the initial network, which dynamic_epochs= trains: give one of them",
        ),
        ({"validation": 1.0}, "validation is 1.0, expected a fraction below 1, or a whole number of images"),
        ({"validation": -0.1}, "validation is -0.1, expected a fraction below 1, or a whole number of images"),
    ],
)
def test_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainSettings(**changes)


def test_names_of_data_sets_may_have_hyphens():
    assert TrainSettings.for_data("fashion-mnist") == TrainSettings.for_data("fashion_mnist")

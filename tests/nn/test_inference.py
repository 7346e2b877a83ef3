"""The loop that runs batches without gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from fastcaps.nn.inference import gather_batches, run_batches


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    images = torch.arange(10.0).reshape(5, 2)
    labels = torch.tensor([0, 1, 2, 1, 0])
    return [(images[:3], labels[:3]), (images[3:], labels[3:])]


def test_runs_every_batch_in_evaluation_mode_without_gradients() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))
    model[1].eval()
    seen: list[tuple[bool, bool, bool, list[int]]] = []
    told: list[int] = []

    def step(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        seen.append((model.training, torch.is_grad_enabled(), model(inputs).requires_grad, labels.tolist()))

    assert run_batches(model, batches(), step, observe=told.append) == 5
    assert seen == [(False, False, False, [0, 1, 2]), (False, False, False, [1, 0])]
    assert told == [3, 2]
    assert model.training
    assert not model[1].training


def test_restores_the_mode_after_an_error() -> None:
    model = nn.Dropout()

    def step(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run_batches(model, batches(), step)
    assert model.training


def test_gathers_what_each_step_returns() -> None:
    model = nn.Identity()
    arrays = gather_batches(model, batches(), lambda inputs, labels: {"double": 2 * inputs})
    np.testing.assert_array_equal(arrays["double"], 2 * np.arange(10.0).reshape(5, 2))
    np.testing.assert_array_equal(arrays["labels"], [0, 1, 2, 1, 0])


def test_refuses_nothing_at_all() -> None:
    with pytest.raises(ValueError, match="there are no images"):
        gather_batches(nn.Identity(), [], lambda inputs, labels: {})


def test_refuses_a_batch_without_labels() -> None:
    with pytest.raises(ValueError, match="expected a pair of inputs"):
        run_batches(nn.Identity(), [torch.zeros(3, 2)], lambda inputs, labels: None)  # type: ignore[list-item]

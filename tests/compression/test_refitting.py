import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch

from fastcaps import CapsNet, CapsNetConfig, FastCapsNet, fold
from fastcaps._tensors import read_tensors
from fastcaps.compression import RefitSettings, Teacher, refit
from fastcaps.data import Augmentation, DataSet, Split
from fastcaps.functional import capsule_distillation_loss, cross_entropy_loss, length_distillation_loss, margin_loss
from fastcaps.nn.pretrained import weights_hash

CONFIG = CapsNetConfig.for_images(
    14, 14, 1, classes=3, stem_channels=6, stem_kernel=5, capsule_types=4, lower_dimension=4, primary_kernel=5,
    class_dimension=4, decoder=(5,),
)  # fmt: skip


def stripes(count: int, seed: int) -> Split:
    """Images of three classes: horizontal, vertical and no stripes, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 100, (count, 1, 14, 14), dtype=torch.uint8, generator=generator)
    images[labels == 0, :, ::4] = 220
    images[labels == 1, :, :, ::4] = 220
    return Split(labels, lambda indices: images[indices])


def data(train: int = 150) -> DataSet:
    return DataSet(
        name="stripes",
        class_names=("across", "down", "none"),
        image_shape=(1, 14, 14),
        train=stripes(train, 0),
        test=stripes(30, 1),
        provenance={"kind": "generated", "train": train},
        augmentation=Augmentation(shift=1),
    )


def model(seed: int = 0) -> CapsNet:
    torch.manual_seed(seed)
    return CapsNet(CONFIG).eval()


def teacher(folder=None, **changes) -> Teacher:
    return Teacher(model(), data().train, data().augmentation, batch_size=32, folder=folder, **changes)


def test_stored_answers_are_the_computed_ones_and_are_not_computed_again(tmp_path):
    asked: list[int] = []
    first = list(teacher(tmp_path, observe=asked.append).lessons(1))
    again = list(teacher(tmp_path, observe=asked.append).lessons(1))
    computed = list(teacher().lessons(1))
    assert sum(asked) == 150
    for stored, other, exact in zip(first, again, computed, strict=True):
        assert torch.equal(stored.images, exact.images)
        assert torch.equal(stored.labels, exact.labels)
        assert torch.equal(stored.capsules, other.capsules)
        torch.testing.assert_close(stored.capsules, exact.capsules, rtol=1e-3, atol=1e-3)
    middle = next(iter(teacher(tmp_path).lessons(1, start=3)))
    assert torch.equal(middle.images, first[3].images)
    assert torch.equal(middle.capsules, first[3].capsules)


def test_later_epochs_repeat_the_views():
    own = Teacher(model(), data().train, data().augmentation, batch_size=32, views=2)
    first, second, third = (next(iter(own.lessons(epoch))).images for epoch in range(3))
    assert torch.equal(third, first)
    assert not torch.equal(second, first)


def test_answers_of_other_weights_are_computed_anew(tmp_path):
    list(teacher(tmp_path).lessons(0))
    asked: list[int] = []
    other = Teacher(model(1), data().train, data().augmentation, batch_size=32, folder=tmp_path, observe=asked.append)
    list(other.lessons(0))
    assert sum(asked) == 150


def test_training_learns_the_labels_and_leaves_the_decoder_alone():
    fast = fold(model(), "uniform")
    decoder = copy.deepcopy(fast.decoder.state_dict())
    settings = RefitSettings(epochs=6, learning_rate=6e-2, length_weight=0, capsule_weight=0)
    history = refit(fast, teacher(), settings, evaluate=lambda network: 0.5)
    assert [row.epoch for row in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1].loss < history[0].loss
    assert history[-1].accuracy > 0.9
    assert history[0].held_out_accuracy == 0.5
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    for name, tensor in fast.decoder.state_dict().items():
        assert torch.equal(tensor, decoder[name])


def test_the_losses_are_added_by_their_weights():
    lesson = next(iter(teacher().lessons(0)))
    output = fold(model(), "uniform")(lesson.images)
    losses = {
        "label_weight": cross_entropy_loss(output.lengths, lesson.labels, 20.0),
        "margin_weight": margin_loss(output.lengths, lesson.labels),
        "length_weight": length_distillation_loss(output.lengths, lesson.capsules.norm(dim=-1), 20.0),
        "capsule_weight": capsule_distillation_loss(output.capsules, lesson.capsules),
    }

    def loss(**weights: Any) -> torch.Tensor:
        return RefitSettings(**dict.fromkeys(losses, 0.0) | weights).loss(output, lesson)

    for name, expected in losses.items():
        torch.testing.assert_close(loss(**{name: 3.0}), 3 * expected)
    torch.testing.assert_close(loss(**dict.fromkeys(losses, 1.0)), sum(losses.values()))


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path):
    file, settings = tmp_path / "checkpoint.safetensors", RefitSettings(epochs=1, averaging=0.0)
    refit(fold(model(), "uniform"), teacher(), settings, checkpoint=file)
    metadata, tensors = read_tensors(file)
    stored = json.loads(metadata["key"])
    for name in ("margin_weight", "averaging"):
        del stored[name]
    for name in ("rotation", "zoom"):
        del stored["augmentation"][name]
    tensors = {name: value for name, value in tensors.items() if not name.startswith("average.")}
    tensors |= {name.replace("model.", "best."): value.clone() for name, value in tensors.items() if "model." in name}
    metadata["position"] = json.dumps({**json.loads(metadata["position"]), "best": None})
    safetensors.torch.save_file(tensors, file, metadata={**metadata, "key": json.dumps(stored)})
    resumed = refit(fold(model(), "uniform"), teacher(), settings, checkpoint=file)
    assert [row.epoch for row in resumed] == [1]
    others = {"margin_weight": replace(settings, margin_weight=1.0), "averaging": replace(settings, averaging=0.9)}
    for name, other in others.items():
        with pytest.raises(ValueError, match=rf"is of another training \({name} differ\)"):
            refit(fold(model(), "uniform"), teacher(), other, checkpoint=file)


@pytest.mark.parametrize("averaging", [0.0, 0.3, 0.998])
def test_the_result_is_an_average_over_the_last_steps(averaging):
    network, expected, step = fold(model(), "uniform"), fold(model(), "uniform").routing.weight.double(), 0

    def observe(progress):
        nonlocal expected, step
        keep = min(averaging, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * network.routing.weight.detach().double()
        step += 1

    refit(network, teacher(), RefitSettings(epochs=3, averaging=averaging), observe=observe)
    assert step == 15
    torch.testing.assert_close(network.routing.weight.double(), expected, atol=1e-6, rtol=1e-6)


def test_images_are_counted_with_those_that_the_teacher_has_not_answered(tmp_path):
    own = Teacher(model(), data().train, data().augmentation, batch_size=32, views=2, folder=tmp_path)
    images = len(data().train)
    assert own.images_left(3) == (3 + 2) * images
    list(own.lessons(0))
    assert own.images_left(3) == (3 + 1) * images
    assert Teacher(model(), data().train, data().augmentation).images_left(3) == (3 + 3) * images


def test_distillation_alone_brings_the_capsules_nearer_to_the_teacher():
    own = model()
    with torch.no_grad():
        own.routing.weight.mul_(4)
    lesson = Teacher(own, data().train, data().augmentation, batch_size=32)
    fast = fold(own, "uniform")

    def distance(network: FastCapsNet) -> float:
        lessons = list(lesson.lessons(9))
        with torch.no_grad():
            return sum(float((network(one.images).capsules - one.capsules).square().sum()) for one in lessons)

    before = distance(fast)
    refit(fast, lesson, RefitSettings(epochs=5, learning_rate=1e-2, label_weight=0, length_weight=0, capsule_weight=1))
    assert distance(fast) < before / 2


def test_training_goes_on_bit_for_bit_in_the_middle_of_an_epoch(tmp_path):
    settings = RefitSettings(epochs=2)
    whole = fold(model(), "uniform")
    expected = refit(whole, teacher(), settings)

    class Killed(Exception):  # noqa: N818
        pass

    def kill(progress):
        if (progress.epoch, progress.step) == (2, 3):
            raise Killed

    file, first = tmp_path / "checkpoint.safetensors", fold(model(), "uniform")
    with pytest.raises(Killed):
        refit(first, teacher(), settings, checkpoint=file, checkpoint_every=2, observe=kill)
    again = fold(model(), "uniform")
    assert refit(again, teacher(), settings, checkpoint=file) == expected
    assert weights_hash(again) == weights_hash(whole)
    finished = fold(model(), "uniform")
    assert refit(finished, teacher(), settings, checkpoint=file) == expected
    assert weights_hash(finished) == weights_hash(whole)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    file = tmp_path / "checkpoint.safetensors"
    refit(fold(model(), "uniform"), teacher(), RefitSettings(epochs=1), checkpoint=file)
    with pytest.raises(ValueError, match=r"checkpoint.safetensors is of another training \(epochs differ\)"):
        refit(fold(model(), "uniform"), teacher(), RefitSettings(epochs=2), checkpoint=file)
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="checkpoint.safetensors is damaged or not a safetensors file"):
        refit(fold(model(), "uniform"), teacher(), RefitSettings(epochs=1), checkpoint=file)


def test_a_loss_that_is_not_finite_is_refused():
    fast = fold(model(), "uniform")
    fast.routing.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="the loss became nan: train with a smaller learning rate than 0.001"):
        refit(fast, teacher(), RefitSettings(epochs=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"averaging": 1.0}, "averaging is 1.0, expected a share of at least 0 and below 1"),
        ({"epochs": 0}, "epochs is 0, expected a whole number, at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, expected a number above 0"),
        ({"capsule_weight": -1.0}, "capsule_weight is -1.0, expected a number, at least 0"),
        ({"margin_weight": -0.5}, "margin_weight is -0.5, expected a number, at least 0"),
        ({"label_weight": 0, "length_weight": 0, "capsule_weight": 0}, "are all 0: there is nothing to learn"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        RefitSettings(**changes)


@pytest.mark.parametrize(("accuracies", "epoch"), [((0.5, 0.9, 0.2), 3), ((0.1, 0.0, 0.15), 3), ((0.1, 0.9, 0.1), 0)])
def test_the_weights_are_those_of_the_last_epoch_or_the_initial_ones(tmp_path, accuracies: tuple[float, ...], epoch):
    settings = RefitSettings(epochs=3, learning_rate=0.01)
    after: list[str] = []

    def evaluate(network: FastCapsNet) -> float:
        after.append(weights_hash(network))
        return accuracies[len(after) - 1]

    network = fold(model(), "uniform")
    after_none = weights_hash(network)
    refit(network, teacher(), settings, evaluate=evaluate, accuracy=0.15)
    assert weights_hash(network) == [after_none, *after][epoch]
    hashes, after[:] = list(after), []

    def stop(progress) -> None:
        if progress.epoch == 3:
            raise KeyboardInterrupt

    resumed, file = fold(model(), "uniform"), tmp_path / "checkpoint.safetensors"
    with pytest.raises(KeyboardInterrupt):
        refit(resumed, teacher(), settings, checkpoint=file, evaluate=evaluate, accuracy=0.15, observe=stop)
    resumed = fold(model(), "uniform")
    refit(resumed, teacher(), settings, checkpoint=file, evaluate=evaluate, accuracy=0.15)
    assert after == hashes
    assert weights_hash(resumed) == weights_hash(network)

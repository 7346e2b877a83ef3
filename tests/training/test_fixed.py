"""Training with fixed coefficients: from a file, from dynamic epochs, refreshed; the fold is the trained network."""

from dataclasses import replace

import pytest
import safetensors.torch
import torch
from tests.kills import Killed as KilledWriting
from tests.kills import killed_before_write
from tests.training.conftest import make_data, small_config
from tests.training.test_trainer import Killed, same, weights

from fastcaps import CapsNet, FastCapsNet, MasterCoefficients, accumulate, fold
from fastcaps.data import Augmentation, batches
from fastcaps.distributed import World
from fastcaps.functional import capsule_distillation_loss, length_distillation_loss, margin_loss
from fastcaps.master import FilterReport
from fastcaps.master.uniform import uniform_coefficients
from fastcaps.nn.pretrained import weights_hash
from fastcaps.nn.whitening import whiten_stem
from fastcaps.training import CallbackLogger, Report, Run, Trainer, TrainSettings
from fastcaps.training.accuracy import count_correct
from fastcaps.training.optimization import Optimization
from fastcaps.training.schedule import Schedule


def trainer(data, config, out, observe=lambda report: None, master=None, **changes):
    settings = TrainSettings(**({"epochs": 4, "batch_size": 16, "warmup": 5, "learning_rate": 3e-3} | changes))
    torch.manual_seed(settings.seed)
    return Trainer(CapsNet(config), data, settings, out, master=master, loggers=[CallbackLogger(observe)])


def routed(history):
    return [row.routing for row in history]


def check_result(run, data, history):
    """The folder holds the coefficients, the folded network and its sibling, and they belong together."""
    model, master = run.model(), run.master()
    fast = FastCapsNet.from_pretrained(run.fast_folder)
    assert master.trained_with == weights_hash(model) != master.model_hash
    assert run.about.fixed_coefficients is True
    images = torch.rand(5, 1, 12, 12)
    expected = model(images, fixed=master.values)
    torch.testing.assert_close(fast(images).capsules, expected.capsules, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model(images).capsules, expected.capsules, atol=1e-3)
    right = count_correct(fast, data.test, data.augmentation.test_view)
    assert right / len(data.test) == history[-1].test_accuracy


@pytest.mark.slow
def test_a_new_network_with_coefficients_from_a_file(data, config, tmp_path):
    torch.manual_seed(5)
    other = CapsNet(config)
    master = accumulate(other, batches(data.train, 16, view=data.augmentation.test_view))
    fixed = trainer(data, config, tmp_path, master=master, epochs=40, test_every=40)
    fixed.model.routing.reset_parameters(master.values)
    history = fixed.fit()
    assert history[-1].loss < 0.5 * history[0].loss
    assert history[-1].test_accuracy > 0.8
    assert set(routed(history)) == {"fixed"}
    run = Run.open(tmp_path)
    check_result(run, data, history)
    assert run.master().model_hash == weights_hash(other)
    torch.testing.assert_close(run.master().values, master.values, rtol=0, atol=0)


@pytest.mark.slow
def test_fixed_ones_are_one_iteration_of_routing(data, config, tmp_path):
    """Training with uniform coefficients is training with a single iteration: the same loss at every epoch."""
    uniform = uniform_coefficients(config)
    assert (uniform.values == 1).all()
    assert uniform.iteration == 1
    fixed = trainer(data, config, tmp_path / "fixed", master=uniform)
    single = trainer(data, replace(config, iterations=1), tmp_path / "single")
    single.model.load_state_dict(fixed.model.state_dict())
    for one, other in zip(fixed.fit(), single.fit(), strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)


def test_softmax_networks_start_at_an_equal_share(config):
    from dataclasses import replace

    uniform = uniform_coefficients(replace(config, normalization="softmax"))
    torch.testing.assert_close(uniform.values, torch.full_like(uniform.values, 1 / 3))


@pytest.mark.slow
def test_dynamic_epochs_then_fixed(data, config, tmp_path):
    reports: list[Report] = []
    run = trainer(data, config, tmp_path, reports.append, epochs=10, dynamic_epochs=4, test_every=10)
    history = run.fit()
    assert routed(history) == ["dynamic"] * 4 + ["fixed"] * 6
    assert history[-1].loss < min(0.6 * history[0].loss, history[4].loss)
    check_result(Run.open(tmp_path), data, history)
    accumulating = [report for report in reports if report.task == "accumulating"]
    assert [(report.epoch, report.step, report.steps) for report in accumulating] == [(5, k, 3) for k in (1, 2, 3)]
    assert Run.open(tmp_path).master().counts.tolist() == [16, 16, 16]
    assert Run.open(tmp_path).master().provenance["epoch"] == 4


def test_dynamic_epochs_on_a_part_of_the_images(data, config, tmp_path):
    seen: list[int] = []
    options = {"epochs": 3, "dynamic_epochs": 2, "dynamic_fraction": 0.5}
    run = trainer(data, config, tmp_path, lambda report: seen.append(report.steps), **options)
    history = run.fit()
    assert [run.schedule.steps(epoch) for epoch in range(3)] == [2, 2, 3]
    assert seen == [2, 2, 2, 2, 2, 2, 3, 3, 3]  # two epochs of two steps, an accumulation of two, an epoch of three
    assert Run.open(tmp_path).master().counts.tolist() == [8, 8, 8]
    rates = [row.learning_rate for row in history]
    assert rates[-1] == pytest.approx(3e-3 * 0.02)
    assert rates == sorted(rates, reverse=True)


@pytest.mark.slow
def test_starting_afresh_is_a_new_run_with_those_coefficients(data, config, tmp_path):
    history = trainer(data, config, tmp_path / "long", epochs=14, dynamic_epochs=2, reinit=True, test_every=14).fit()
    assert history[-1].loss < 0.7 * history[2].loss
    check_result(Run.open(tmp_path / "long"), data, history)
    trainer(data, config, tmp_path / "both", epochs=5, dynamic_epochs=2, reinit=True).fit()
    trainer(data, config, tmp_path / "dynamic", epochs=2).fit()
    dynamic = Run.open(tmp_path / "dynamic").model()
    master = accumulate(dynamic, batches(data.train, 16, view=data.augmentation.test_view))
    torch.testing.assert_close(Run.open(tmp_path / "both").master().values, master.values, rtol=0, atol=0)
    # Epochs are numbered on, so order and augmentation are those of epochs 3 to 5: compare the learning rates, the
    # steps of Adam, and the weights it starts from.
    settings = TrainSettings(epochs=3, batch_size=16, warmup=5)
    fresh = Schedule.of(settings, data.train)
    both = Schedule.of(replace(settings, epochs=5, dynamic_epochs=2, reinit=True), data.train)
    assert [both.rate(2, step) for step in range(3)] == [fresh.rate(0, step) for step in range(3)]
    checkpoint = safetensors.torch.load_file(tmp_path / "both" / "checkpoint.safetensors")
    assert checkpoint["adam.step.routing.weight"] == 9
    model = CapsNet(config)
    Optimization(model, TrainSettings(), World()).reinitialize(master)
    torch.manual_seed(0)
    new = CapsNet(config)
    new.routing.reset_parameters(master.values)
    assert same(model.state_dict(), new.state_dict())
    images = data.augmentation.test_view(data.train.images(torch.arange(10)))
    optimization = Optimization(model, TrainSettings(), World())
    optimization.reinitialize(master)
    optimization.whiten_stem(images)
    whiten_stem(new.stem, images)
    assert same(model.state_dict(), new.state_dict())


@pytest.mark.slow
def test_coefficients_are_refreshed(data, config, tmp_path):
    epochs: list[int] = []

    def note(report):
        if report.task == "accumulating" and report.step == 1:
            epochs.append(report.epoch)

    run = trainer(data, config, tmp_path, note, epochs=7, dynamic_epochs=2, refresh_every=2, test_every=7)
    history = run.fit()
    assert epochs == [3, 5, 7]
    assert history[-1].loss < 0.8 * history[0].loss
    check_result(Run.open(tmp_path), data, history)
    assert Run.open(tmp_path).master().provenance["epoch"] == 6


def test_a_refreshed_matrix_is_of_the_same_kind(data, config, tmp_path):
    torch.manual_seed(1)
    images = list(batches(data.train, 16, view=data.augmentation.test_view))
    initial = accumulate(CapsNet(config), images, iteration="final", method="pooled")
    run = trainer(data, config, tmp_path, master=initial, epochs=2, refresh_every=1)
    run.fit()
    actual = Run.open(tmp_path).master()
    assert (actual.method, actual.iteration, actual.provenance["epoch"]) == ("pooled", 4, 1)
    assert not torch.allclose(actual.values, initial.values)
    filtered = replace(initial, filters=(FilterReport("correct", {}, "", (), ()),))
    with pytest.raises(ValueError, match=r"that were filtered \(correct\) are not refreshed: leave refresh_every= out"):
        trainer(data, config, tmp_path, master=filtered, epochs=2, refresh_every=1)


@pytest.mark.slow
def test_with_a_validation_split_weights_and_coefficients_are_of_the_best_epoch(data, config, tmp_path):
    run = trainer(data, config, tmp_path, epochs=6, dynamic_epochs=2, refresh_every=1, validation=12)
    history = run.fit()
    best = max(history[2:], key=lambda row: row.validation_accuracy)
    assert run.progress.best == best
    fast = FastCapsNet.from_pretrained(tmp_path / "fast")
    assert count_correct(fast, run.validation, data.augmentation.test_view) / 12 == best.validation_accuracy
    selected = MasterCoefficients.load(tmp_path / "best" / "master.safetensors")
    assert selected.provenance["epoch"] == best.epoch - 1
    torch.testing.assert_close(Run.open(tmp_path).master().values, selected.values, rtol=0, atol=0)
    assert int(selected.counts.sum()) == 36


def test_the_routing_layer_alone_is_trained(data, config, tmp_path):
    torch.manual_seed(0)
    before = CapsNet(config).state_dict()
    for name, master in (("dynamic", None), ("fixed", uniform_coefficients(config))):
        only = trainer(data, config, tmp_path / name, master=master, routing_only=True, loss="cross_entropy")
        history = only.fit()
        assert history[-1].loss < history[0].loss
        after = weights(tmp_path / name / "model")
        assert [key for key in before if not torch.equal(before[key], after[key])] == ["routing.weight"]
        assert all(parameter.requires_grad for parameter in only.model.parameters())
        stored = safetensors.torch.load_file(tmp_path / name / "checkpoint.safetensors")
        assert [key for key in stored if key.startswith("adam.exp_avg.")] == ["adam.exp_avg.routing.weight"]
        assert Run.open(tmp_path / name).about.settings.routing_only is True


@pytest.mark.slow
@pytest.mark.parametrize("routing_only", [False, True])
def test_distillation_brings_the_capsules_nearer_to_those_of_dynamic_routing(data, config, tmp_path, routing_only):
    trainer(data, config, tmp_path / "dynamic").fit()
    images, _ = next(iter(batches(data.train, len(data.train), view=data.augmentation.test_view)))
    taught = CapsNet.from_pretrained(tmp_path / "dynamic")(images).capsules.detach()
    distances = []
    for distill in (False, True):
        settings = TrainSettings(
            epochs=4, batch_size=16, warmup=0, reconstruction_weight=0.0, routing_only=routing_only, distill=distill
        )
        model, out = CapsNet.from_pretrained(tmp_path / "dynamic"), tmp_path / f"{distill}"
        Trainer(model, data, settings, out, master=uniform_coefficients(config), loggers=[]).fit()
        distances.append(float((FastCapsNet.from_pretrained(out)(images).capsules - taught).square().sum()))
    assert distances[1] < distances[0]


@pytest.mark.slow
def test_a_resumed_run_has_the_same_teacher(data, config, tmp_path):
    master = uniform_coefficients(config)

    def die(report):
        if (report.epoch, report.step) == (3, 2):
            raise Killed

    trainer(data, config, tmp_path / "whole", master=master, distill=True).fit()
    with pytest.raises(Killed):
        trainer(data, config, tmp_path / "killed", die, master=master, distill=True).fit()
    trainer(data, config, tmp_path / "killed", master=master, distill=True).fit(resume=True)
    assert same(weights(tmp_path / "whole" / "model"), weights(tmp_path / "killed" / "model"))


def test_the_loss_of_distillation_is_the_sum_of_its_terms(data, config, tmp_path):
    still, n = replace(data, augmentation=Augmentation()), len(data.train)
    options = {"epochs": 1, "batch_size": n, "reconstruction_weight": 0.0, "distill": True, "sharpness": 5.0}
    one = trainer(still, config, tmp_path, master=uniform_coefficients(config), **options)
    images, labels = next(iter(batches(data.train, n, view=data.augmentation.test_view)))
    with torch.no_grad():
        own, taught = fold(one.model, "uniform")(images), one.model(images)
    expected = margin_loss(own.lengths, labels) + length_distillation_loss(own.lengths, taught.lengths, 5.0)
    expected = expected + capsule_distillation_loss(own.capsules, taught.capsules)
    assert one.fit()[0].loss == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(ValueError, match="distill=True is for fixed coefficients: give master coefficients"):
        trainer(data, config, tmp_path / "refused", distill=True)


def test_cross_entropy_is_what_the_first_step_descends(data, config, tmp_path):
    """The loss of an epoch of one step is that of the untrained network, by the formula."""
    options = {"epochs": 1, "batch_size": len(data.train), "loss": "cross_entropy", "sharpness": 5.0}
    still = replace(data, augmentation=Augmentation())
    one = trainer(still, config, tmp_path, reconstruction_weight=0.0, **options)
    images, labels = next(iter(batches(data.train, len(data.train), view=data.augmentation.test_view)))
    logarithms = torch.log_softmax(5.0 * one.model(images).lengths.detach(), 1)
    expected = -sum(float(row[label]) for row, label in zip(logarithms, labels, strict=True)) / len(labels)
    assert one.fit()[0].loss == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module", params=[{}, {"reinit": True}, {"refresh_every": 1}, {"routing_only": True}])
def whole(request, tmp_path_factory):
    """A run of three epochs that nothing disturbed, and its settings."""
    options = {"epochs": 3, "dynamic_epochs": 1, "validation": 12, **request.param}
    folder = tmp_path_factory.mktemp("whole")
    trainer(make_data(), small_config(), folder, **options).fit()
    return folder, options


@pytest.mark.slow
@pytest.mark.parametrize("kill", range(1, 13, 2))
def test_a_run_that_died_anywhere_ends_with_the_same_weights(whole, data, config, tmp_path, kill):
    folder, options = whole
    seen = 0

    def die(report):
        nonlocal seen
        seen += 1
        if seen == kill:
            raise Killed

    with pytest.raises(Killed):
        trainer(data, config, tmp_path, die, **options).fit()
    trainer(data, config, tmp_path, **options).fit(resume=True)
    for part in ("model", "best", "fast"):
        assert same(weights(folder / part), weights(tmp_path / part))
    assert same(*(safetensors.torch.load_file(run / "master.safetensors") for run in (folder, tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("whole", [{"refresh_every": 1}], indirect=True, ids=["refresh_every"])
@pytest.mark.parametrize("write", [2, 3, 4, 6, 9])
def test_a_run_that_died_before_a_write_resumes(whole, data, config, tmp_path, write):
    folder, options = whole
    with pytest.raises(KilledWriting), killed_before_write(write):
        trainer(data, config, tmp_path, **options).fit()
    started = (tmp_path / "checkpoint.safetensors").exists()
    trainer(data, config, tmp_path, **options).fit(resume=started)
    for part in ("model", "fast"):
        assert same(weights(folder / part), weights(tmp_path / part))


@pytest.mark.slow
def test_a_given_file_is_kept_and_resumed_with(data, config, tmp_path):
    master = uniform_coefficients(config)
    trainer(data, config, tmp_path / "whole", master=master).fit()

    def die(report):
        if (report.epoch, report.step) == (2, 2):
            raise Killed

    with pytest.raises(Killed):
        trainer(data, config, tmp_path / "cut", die, master=master).fit()
    assert (tmp_path / "cut" / "master.safetensors").is_file()
    with pytest.raises(ValueError, match=r"is of another run \(master was [0-9a-f]{64}, now None\)"):
        trainer(data, config, tmp_path / "cut").fit(resume=True)
    trainer(data, config, tmp_path / "cut", master=master).fit(resume=True)
    assert same(weights(tmp_path / "whole/model"), weights(tmp_path / "cut/model"))
    first = Run.open(tmp_path / "cut").master().summary()
    trainer(data, config, tmp_path / "cut", master=master).fit(resume=True)  # a finished one stays as it is
    assert Run.open(tmp_path / "cut").master().summary() == first


def test_what_does_not_go_together_is_refused(data, config, tmp_path):
    master = uniform_coefficients(config)
    with pytest.raises(ValueError, match="from the start has no dynamic_epochs=: give one of them"):
        trainer(data, config, tmp_path, master=master, dynamic_epochs=1)
    with pytest.raises(ValueError, match="only fixed coefficients are refreshed: give master coefficients, or dynamic"):
        trainer(data, config, tmp_path, refresh_every=1)
    wider = uniform_coefficients(replace(config, capsule_types=8))
    i = config.lower_capsules
    with pytest.raises(ValueError, match=f"master coefficients are for {2 * i}×3 capsules, this model has {i}×3"):
        trainer(data, config, tmp_path, master=wider)
    with pytest.raises(ValueError, match="dynamic_fraction is 0, expected a part above 0, at most 1"):
        TrainSettings(dynamic_fraction=0)
    with pytest.raises(ValueError, match="dynamic_fraction= and reinit=True are for runs with dynamic_epochs=: give"):
        TrainSettings(reinit=True)
    with pytest.raises(ValueError, match="dynamic_epochs is 4, expected a whole number from 1 to 3, less than all"):
        TrainSettings(epochs=4, dynamic_epochs=4)
    with pytest.raises(ValueError, match="refresh_every is -1, expected a whole number, at least 0"):
        TrainSettings(refresh_every=-1)


def test_dynamic_epochs_need_every_class(config, tmp_path):
    message = "dynamic_fraction 0.1 of 6 images has none of class 1, 2, and every class is accumulated: take a larger"
    with pytest.raises(ValueError, match=message):
        trainer(make_data(train=6), config, tmp_path, dynamic_epochs=1, dynamic_fraction=0.1)


def test_batch_norm_is_trained_saved_and_left_alone_by_routing_only(data, config, tmp_path):
    config = replace(config, batch_norm=True, class_bias=True)
    trainer(data, config, tmp_path / "run").fit()
    model = CapsNet.from_pretrained(tmp_path / "run")
    assert (model.state_dict()["stem.norm.running_mean"] != 0).any()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = TrainSettings(epochs=1, batch_size=8, routing_only=True, reconstruction_weight=0.0, warmup=0)
    Trainer(model, data, settings, tmp_path / "refit", master=uniform_coefficients(config)).fit()
    after = CapsNet.from_pretrained(tmp_path / "refit").state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"routing.weight", "routing.bias"}
    fast = FastCapsNet.from_pretrained(tmp_path / "refit")
    assert fast.stem.norm is None

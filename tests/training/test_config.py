"""Config files: read, checked, changed, written back."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcaps.training import TrainConfig, TrainSettings
from fastcaps.training.config import ConfigError

FILE = """
[data]
name = "digits"
size = "40x32"

[network]
normalization = "softmax"
decoder = [64, 128]

[training]
epochs = 5
validation = 0.1

[run]
out = "runs/one"
loggers = ["tensorboard"]
"""


def test_reading_changing_and_writing(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    config = TrainConfig.load(path)
    assert config.data.size == (40, 32)
    assert config.network == {"normalization": "softmax", "decoder": (64, 128)}
    changed = config.changed(epochs=7, data="mnist", iterations=2, out=tmp_path, threads=1)
    assert (changed.training, changed.data.name) == ({"epochs": 7, "validation": 0.1}, "mnist")
    assert (changed.run.out, changed.run.threads, changed.run.loggers) == (str(tmp_path), 1, ("tensorboard",))
    assert config.training["epochs"] == 5  # as it was
    assert TrainConfig.from_dict(tomllib.loads(changed.to_toml("a comment"))) == changed


@pytest.mark.slow
@given(st.text(), st.floats(1e-9, 1, allow_nan=False), st.lists(st.integers(1, 9)))
def test_every_value_is_read_back(text, number, numbers):
    config = TrainConfig().changed(out=text, learning_rate=number, decoder=numbers)
    assert TrainConfig.from_dict(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]", r"run.toml: there is no table \[train\]: did you mean \[training\]\?"),
        (
            "epochs = 3",
            r"run.toml: there is no table \[epochs\], expected \[data\], \[network\], \[run\], \[training\]",
        ),
        ("training = 3", r"run.toml: training is 3, expected a table \[training\]"),
        ("[training]\nepoch = 3", r"run.toml: \[training\] has no key 'epoch': did you mean 'epochs'\?"),
        ("[training]\nepochs = 3.5", r"run.toml: \[training\] epochs is 3.5, expected a whole number"),
        ("[training]\nepochs = true", r"run.toml: \[training\] epochs is true, expected a whole number"),
        ("[training]\nvalidation = 'x'", r'run.toml: \[training\] validation is "x", expected a number'),
        (
            "[training]\nloss = 'hinge'",
            r'run.toml: \[training\] loss is "hinge", expected one of margin, cross_entropy',
        ),
        (
            "[network]\nstem_chanels = 3",
            r"run.toml: \[network\] has no key 'stem_chanels': did you mean 'stem_channels'\?",
        ),
        ("[network]\nheight = 3", r"run.toml: \[network\] has no key 'height'"),
        ("[network]\ndecoder = 3", r"run.toml: \[network\] decoder is 3, expected a list such as \[int, …\]"),
        ("[run]\nthreads = 'all'", r'run.toml: \[run\] threads is "all", expected a whole number'),
        ("[data]\nsize = [1, 2, 3]", r"run.toml: \[data\] size is \[1, 2, 3\], expected a list such as \[int, int\]"),
        ("[data]\nsize = '40'", "size=40: expected height and width such as 40x32"),
        ("[data", r"run.toml is not TOML: "),
    ],
)
def test_errors_name_file_table_and_key(tmp_path, text, message):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        TrainConfig.load(path)


def test_arguments_that_are_unknown():
    with pytest.raises(ConfigError, match=r"epoch is no argument of a training run: did you mean epochs\?"):
        TrainConfig().changed(epoch=1)
    with pytest.raises(ConfigError, match=r"master is no argument of a training run: did you mean coefficients\?"):
        TrainConfig().changed(master="uniform")


def test_every_setting_is_a_key():
    settings = TrainSettings(epochs=4, dynamic_epochs=2, reinit=True, validation=3)
    config = TrainConfig().changed(**settings.to_dict())
    assert TrainSettings(**TrainConfig.from_dict(tomllib.loads(config.to_toml())).training) == settings
    assert settings.validation == 3

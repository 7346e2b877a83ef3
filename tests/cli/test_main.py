"""The command line as a whole: what it imports, how it fails."""

import json
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError

import pytest
import typer
from tests.data import tiny
from typer.testing import CliRunner

import fastcaps
from fastcaps import distributed
from fastcaps.bundled import names
from fastcaps.cli import app, main
from fastcaps.cli._common import command, distributed_command
from fastcaps.distributed import EndedElsewhereError, JoiningError, WorkerLostError, World


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import fastcaps; dir(fastcaps); fastcaps.__version__",
        "import fastcaps; fastcaps.CapsNetConfig.mnist()",
        "from typer.testing import CliRunner; from fastcaps.cli import app; CliRunner().invoke(app, ['--help'])",
    ],
)
def test_nothing_waits_for_torch(code):
    last = run_python(f"{code}\nimport sys; print([m for m in ('torch', 'sklearn') if m in sys.modules])").splitlines()[
        -1
    ]
    assert last == "[]"


@pytest.mark.slow
def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "fastcaps", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fastcaps {fastcaps.__version__}\n"


def test_public_names_are_there_and_no_others():
    for name in fastcaps.__all__:
        assert getattr(fastcaps, name) is not None
    for name in fastcaps.nn.__all__:
        assert getattr(fastcaps.nn, name) is not None
    assert set(fastcaps.__all__) == set(dir(fastcaps))
    with pytest.raises(AttributeError, match="module 'fastcaps' has no attribute 'CapsuleNet'"):
        fastcaps.CapsuleNet  # noqa: B018


def test_wrong_use_is_2():
    result = CliRunner().invoke(app, ["nothing"])
    assert result.exit_code == 2
    assert "No such command 'nothing'" in result.output
    assert CliRunner().invoke(app, ["demo", "--seed", "-1"]).exit_code == 2


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("classes is 1, expected at least 2"), 1, "error: classes is 1, expected at least 2\n"),
        (FileNotFoundError("x does not exist"), 1, "error: x does not exist\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_a_command_fails_with_one_line(error, code, line, monkeypatch):
    app = typer.Typer()

    @app.command()
    @command
    def fail() -> None:
        raise error

    result = CliRunner().invoke(app)
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")
    if code == 1:
        monkeypatch.setenv("FASTCAPS_TRACEBACK", "1")
        assert CliRunner().invoke(app).exception is error


class Shared(dict[str, int]):
    """A store that other processes could see."""

    def add(self, key, count):
        self[key] = self.get(key, 0) + count
        return self[key]

    def set(self, key, value):
        self[key] = int(value)

    def get(self, key, default=None):
        return super().get(key, default)

    def check(self, keys):
        return all(key in self for key in keys)


LOST = (
    "error: another process of this job has died or doesn't answer any more: see above what it said, then start again "
    "(fastcaps train resumes from its checkpoint with --resume)\n"
)


@pytest.mark.parametrize(
    ("error", "before", "code", "line"),
    [
        (ValueError("image 7 can't be decoded"), {}, 1, "error: image 7 can't be decoded\n"),
        (KeyboardInterrupt(), {}, 130, "interrupted\n"),
        (RuntimeError("[gloo/pair.cc:1] Connection closed by peer"), {}, 1, LOST),
        (RuntimeError("[gloo/pair.cc:1] Connection closed by peer"), {"ended": 130}, 130, ""),
        (WorkerLostError("process 0 of 2 has sent no heartbeat for 50 seconds"), {}, 1, LOST),
        (EndedElsewhereError(1), {}, 1, ""),
    ],
)
def test_another_process_than_the_first_speaks_only_for_itself(error, before, code, line, monkeypatch, capfd):
    store = Shared(before)

    @contextmanager
    def joined():
        yield World(1, 2, store=store)

    monkeypatch.setattr(distributed, "launched", lambda: (1, 2))
    monkeypatch.setattr(distributed, "init_distributed", joined)
    monkeypatch.setattr(World, "check_same", lambda self, **values: None)  # there is nobody to compare with
    monkeypatch.setattr(sys, "stderr", sys.stderr)

    @distributed_command
    def fail() -> None:
        raise error

    for expected in (line, ""):  # the second process has the same to say
        with pytest.raises(typer.Exit) as end:
            fail()
        assert end.value.exit_code == code
        assert capfd.readouterr() == ("", expected)
        if line and line != LOST:
            assert store["ended"] == code
        store.pop("ended", None)
        store.update(before)
    for error in (RuntimeError("a bug"), KeyError("a bug")):
        monkeypatch.setattr(sys, "stderr", None)
        with pytest.raises(type(error), match="a bug"):
            fail()
        assert sys.stderr is sys.__stderr__  # where the traceback will be seen
        assert store.pop("ended") == 1


def test_every_process_says_that_it_could_not_join(monkeypatch, capfd):
    def joined():
        raise JoiningError("process 1 of 2 could not join the others")

    monkeypatch.setattr(distributed, "launched", lambda: (1, 2))
    monkeypatch.setattr(distributed, "init_distributed", joined)
    monkeypatch.setattr(sys, "stderr", None)  # where nobody would see it
    with pytest.raises(typer.Exit) as end:
        distributed_command(lambda: None)()
    assert end.value.exit_code == 1
    assert capfd.readouterr() == ("", "error: process 1 of 2 could not join the others\n")


def test_a_command_for_one_process_says_so(monkeypatch):
    monkeypatch.setattr(distributed, "launched", lambda: (0, 2))
    result = CliRunner().invoke(app, ["ablate", "x"])
    assert result.exit_code == 1
    assert result.stderr == "error: fastcaps ablate works in one process, 2 were started: leave torchrun out\n"


@pytest.mark.parametrize(("rank", "words"), [(0, "No such command 'nothing'"), (1, "")])
def test_of_wrong_use_the_first_process_speaks_and_the_others_wait_for_it(rank, words, monkeypatch, capsys):
    waited: list[float] = []
    monkeypatch.setattr(distributed, "launched", lambda: (rank, 2))
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr(sys, "argv", ["fastcaps", "nothing"])
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    if rank:
        sys.stdout.close()
    printed = capsys.readouterr()
    assert words in printed.err
    assert bool(printed.err) == bool(words)
    assert waited == [30] * rank


def test_a_missing_extra_says_what_to_install(missing_package, monkeypatch):
    missing_package("sklearn")
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    command = "python -m pip install 'scikit-learn>=1.4'"
    assert result.stderr == f"error: fastcaps demo needs sklearn, not installed here: {command}\n"
    monkeypatch.setattr("importlib.metadata.Distribution.from_name", not_installed)  # a checkout on the path
    assert CliRunner().invoke(app, ["demo"]).stderr.endswith(": python -m pip install scikit-learn\n")


def not_installed(name: str) -> list[str]:
    raise PackageNotFoundError(name)


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_demo(tmp_path, monkeypatch):
    """Both parts with all their steps, on few images and for one epoch; the full budget draws digits."""
    tiny.use_few_digits(monkeypatch)
    result = CliRunner().invoke(
        app, ["demo", "--epochs", "1", "--images", "8", "--out", str(tmp_path / "run"), "--json"]
    )
    assert result.exit_code == 0, result.output
    actual = json.loads(result.stdout)
    engines = [row["engine"] for row in actual["engines"]["engines"]]
    assert engines[:3] == ["plain dynamic routing", "dynamic routing", "fast routing"]
    assert "fast routing, int8" in engines
    assert {"compressed" in engines, "compressed, int8" in engines} <= {"mnist-small" in names()}
    assert [row["correct"] for row in actual["engines"]["engines"]] == [8] * len(engines)
    assert actual["evaluation"]["images"] == 40
    assert json.loads((tmp_path / "run/evaluation.json").read_text()) == actual["evaluation"]
    page = (tmp_path / "run/report/index.html").read_text()
    assert "<title>Digits of scikit-learn: a capsule network with Max-Min routing</title>" in page
    for variant in actual["evaluation"]["variants"].values():
        assert f">{variant['accuracy']:.2%}</data>" in page
    assert "http" not in page  # it opens from disk, without a network

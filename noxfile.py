"""Checks in environments of their own: ``nox`` runs all, ``nox -s wheel-3.12`` one; missing Pythons are skipped.

Without nox, ``make test``, ``make check`` and ``make docs`` do the same in .venv.
"""

import gzip
import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYTHONS = ["3.11", "3.12", "3.13"]
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
LARGEST_WHEEL = 3_000_000
nox.options.error_on_missing_interpreters = False
nox.needs_version = ">=2024.4"


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests; arguments after -- go to pytest."""
    session.install(*CONSTRAINTS, "-e", ".[dev]")
    parallel = ("-n", "logical", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder")
    session.run("python", "-m", "pytest", *parallel, *session.posargs)


@nox.session(python=PYTHONS[0])
def lint(session: nox.Session) -> None:
    """Check format, style, types and imports, without changing a file."""
    session.install(*CONSTRAINTS, "-e", ".[dev]")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-logo")


@nox.session(python=PYTHONS[0])
def docs(session: nox.Session) -> None:
    """Build the documentation."""
    requirements = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]["docs"]
    session.install(*CONSTRAINTS, *requirements)
    session.run("python", "-m", "mkdocs", "build", "--quiet", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(python=PYTHONS)
def wheel(session: nox.Session) -> None:
    """Build both packages; install wheel and sdist into fresh environments without PyTorch, and classify a picture."""
    session.install("build", "twine")
    folder = Path(session.create_tmp())
    dist = folder / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for project in (ROOT, ROOT / "models"):
        session.run("python", "-m", "build", "--quiet", "--outdir", str(dist), str(project), silent=True)
    session.run("python", "-m", "twine", "check", "--strict", *map(str, dist.iterdir()))
    [built], [sdist], [models] = (list(dist.glob(name)) for name in ("fastcaps-*.whl", "fastcaps-*.gz", "*models*.whl"))
    size = built.stat().st_size
    session.log(f"{built.name}: {size:,} bytes, {sdist.name}: {sdist.stat().st_size:,} bytes")
    if size > LARGEST_WHEEL:
        session.error(f"{built.name} has {size:,} bytes, at most {LARGEST_WHEEL:,} are allowed")
    with gzip.open(ROOT / "src/fastcaps/data/embedded/mnist/t10k-images-idx3-ubyte.gz") as images:
        pixels = images.read(16 + 28 * 28)[16:]
    (folder / "seven.pgm").write_bytes(b"P5 28 28 255\n" + pixels)
    for archive in (built, sdist):
        environment = folder / "environment"
        session.run("python", "-m", "venv", "--clear", str(environment))
        programs = environment / ("Scripts" if (environment / "Scripts").is_dir() else "bin")

        def run(*command: str | Path, programs: Path = programs) -> str:
            said = session.run(str(programs / command[0]), *map(str, command[1:]), external=True, silent=True)
            session.log(str(said).strip())
            return str(said)

        install = ("python", "-m", "pip", "install", "--quiet", *CONSTRAINTS)
        run(*install, f"fastcaps[runtime] @ {archive.absolute().as_uri()}")
        run("python", "-c", "import fastcaps; print(fastcaps.__version__, fastcaps.__file__)")
        _classify(session, run("fastcaps", "predict", "mnist-small", folder / "seven.pgm", "--json"))
        run("fastcaps", "models")
        run(*install, models)
        _classify(session, run("fastcaps", "predict", "mnist", folder / "seven.pgm", "--json"))


def _classify(session: nox.Session, answer: str) -> None:
    if '"class": "7"' not in answer:
        session.error("the picture of a seven was classified otherwise")

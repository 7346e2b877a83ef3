"""Imports go one way, only the command line speaks of options, and functions are short."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.tables import ROOT


def test_imports_keep_the_contracts():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_documentation_lists_the_same_order():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [layers] = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("| package | what belongs there |")[1].split("\n\n")[0]
    documented = [re.findall(r"`([a-z]+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    assert documented == [layer.split(" | ") for layer in layers]
    packages = {path.parent.name for path in (ROOT / "src" / "fastcaps").glob("*/__init__.py")}
    alone = {path.stem for path in (ROOT / "src" / "fastcaps").glob("[a-z]*.py")} - {"bundled", "shipped"}
    assert {name for row in documented for name in row} == packages | alone


def test_errors_of_the_library_speak_of_arguments():
    source = ROOT / "src" / "fastcaps"
    texts = [
        f"{path.relative_to(ROOT)}:{part.lineno}: {part.value}"
        for path in source.rglob("*.py")
        if path.relative_to(source).parts[0] != "cli"
        for statement in ast.walk(ast.parse(path.read_text()))
        if isinstance(statement, ast.Raise)
        for part in ast.walk(statement)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    assert len(texts) > 400
    assert [text for text in texts if re.search(r"(?<![\w-])--[a-z]", text)] == []


def test_functions_are_short_and_have_few_parameters():
    source = ROOT / "src" / "fastcaps"
    too_large, count = [], 0
    for path in source.rglob("*.py"):
        is_command = path.relative_to(source).parts[0] == "cli"  # a command has a parameter per option
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count += 1
                arguments = node.args
                names = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
                lines, parameters = (node.end_lineno or 0) - node.lineno + 1, len(names - {"self", "cls"})
                if lines > 60 or (parameters > 8 and not is_command):
                    too_large.append(f"{path.name}:{node.name}: {lines} lines, {parameters} parameters")
    assert count > 1000
    assert too_large == []

"""Options generated from the fields of dataclasses, in groups, and errors that name options."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

_OTHERS = "Options"
# A call, or the name of an argument with or without a value.
_ARGUMENT = re.compile(
    r"(?P<function>[\w.]+)\((?P<arguments>[^()]*)\)"
    r"|(?<![\w\-/.'\[])(?P<name>[a-z_]+)\b(?:=(?P<value>[^\s,:;()]*))?"
)
# What follows the name of an argument with a wrong value.
_REFUSED = re.compile(r" is \S+, expected")


class GroupedCommand(TyperCommand):
    """A command whose help lists options in groups, in plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section per group, in the order of their first options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                others = "Arguments" if param.param_type_name == "argument" else _OTHERS
                groups.setdefault(getattr(param, "rich_help_panel", None) or others, []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


def options_from(
    *classes: tuple[str, type], flags: Mapping[str, tuple[str, ...]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option per field of dataclasses to a command, which gets the given options as keyword arguments.

    The help of an option comes from ``Attributes:`` in the docstring of the class. All defaults are None: options that
    are not given are not passed. The metadata of a field may set its group and its metavar, or exclude it.

    Args:
        classes: pairs of the name of a group and a dataclass.
        flags: names of options that differ from those of their fields, or more than one, by field.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)
        own = [entry for entry in signature.parameters.values() if entry.kind != entry.VAR_KEYWORD]
        generated = [
            _parameter(cls, field, group, flags.get(field.name, ()))
            for group, cls in classes
            for field in dataclasses.fields(cls)
            if field.metadata.get("option", True)
        ]

        def wrapped(**values: Any) -> None:
            function(**{name: value for name, value in values.items() if name in signature.parameters or _given(value)})

        wrapped.__name__, wrapped.__doc__, wrapped.__module__ = (
            function.__name__,
            function.__doc__,
            function.__module__,
        )
        parameters = [*generated, *(entry.replace(kind=entry.KEYWORD_ONLY) for entry in own)]
        wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {entry.name: entry.annotation for entry in parameters} | {"return": None}
        return wrapped

    return decorate


def _given(value: Any) -> bool:
    return value is not None and value != [] and value != ()


def _parameter(cls: type, field: "dataclasses.Field[Any]", group: str, names: tuple[str, ...]) -> inspect.Parameter:
    kind = get_type_hints(cls)[field.name]
    if kind == tuple[str, ...]:
        kind = list[str]
    elif "tuple" in str(kind):
        kind = str  # such as 40x32
    parser = number if kind == float | int else None
    option = typer.Option(
        *names,
        help=_help(cls, field),
        parser=parser,
        metavar=field.metadata.get("metavar"),
        rich_help_panel=field.metadata.get("group", group),
        show_default=False,
    )
    annotation = Annotated[(kind if parser is None else float) | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def number(text: str) -> float | int:
    """Return an int if the text is a whole number, otherwise a float."""
    return int(text) if text.strip().isdecimal() else float(text)


def _help(cls: type, field: "dataclasses.Field[Any]") -> str:
    """Return the description of a field in the docstring of its class, with its default."""
    documented = re.search(
        rf"^ +{field.name}: (.*?)(?=^ +\w+: |\Z)", inspect.getdoc(cls) or "", re.MULTILINE | re.DOTALL
    )
    words = " ".join(documented[1].split()).rstrip(".") if documented else field.name
    default = field.default
    if not any(default is none for none in (None, False, ())) and "default" not in words:
        words += f" (default: {default})"
    return words[0].upper() + words[1:] + "."


@contextmanager
def errors_about_options(names: Mapping[str, str], wrong_use: type[Exception]) -> Iterator[None]:
    """Convert the names of arguments in errors to names of options.

    Args:
        names: the option of each argument.
        wrong_use: errors that mean wrong usage of the command, with exit code 2.
    """
    try:
        yield
    except wrong_use as error:
        raise typer.BadParameter(in_words_of_options(str(error), names)) from None
    except (ValueError, OSError) as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (in_words_of_options(error.args[0], names),)
        raise


def in_words_of_options(words: str, names: Mapping[str, str]) -> str:
    """Return a message that speaks of options where it speaks of arguments.

    These become options: ``name=value``, names of several words, and a name that a sentence such as "seed is -1,
    expected …" begins with. A call of a workflow becomes its command, ``fastcaps NAME …``; other calls stay.

    Args:
        words: the message.
        names: the option of each argument.
    """

    def replace(match: re.Match[str]) -> str:
        function, name, value = match["function"], match["name"], match["value"]
        if function is not None:
            return _command(function, match["arguments"]) if function.startswith("workflows.") else match[0]
        is_subject = match.start() == 0 and _REFUSED.match(words, match.end())
        if name not in names or (value is None and "_" not in name and not is_subject):
            return match[0]
        return _option(names[name], value or "")

    return _ARGUMENT.sub(replace, words)


def _command(workflow: str, arguments: str) -> str:
    """Return the command for a call such as ``workflows.export('RUN', precision='int8')``."""
    words = [workflow.replace("workflows.", "fastcaps ")]
    for argument in arguments.split(", "):
        name, equals, value = argument.partition("=")
        words.append(_option(f"--{name.replace('_', '-')}", value) if equals else _unquoted(name))
    return " ".join(words)


def _option(option: str, value: str) -> str:
    positive, _, negative = option.partition("/")
    if value == "False" and negative:
        return negative
    return positive if value in ("", "True") else f"{positive} {_unquoted(value)}"


def _unquoted(value: str) -> str:
    return value.strip("'\"")

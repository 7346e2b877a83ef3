"""Options that name a variant of the master matrix: filters, method, iteration."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from fastcaps.cli._common import renamed_value

if TYPE_CHECKING:
    from fastcaps import master

# Group of options in the help.
_FILTERS = "Filters"

Iteration = Annotated[
    str | None,
    typer.Option(
        help="Iteration of the routing loop, counted from 1; final for the update after the last (default: the last).",
        callback=renamed_value("after", "final"),
    ),
]
Iterations = Annotated[
    list[str] | None,
    typer.Option(
        "--iteration",
        help="Iteration of the routing loop, or final; may be repeated (default: all but the first).",
        callback=renamed_value("after", "final"),
    ),
]
Method = Annotated[
    str,
    typer.Option(
        metavar="[per_class|columns|pooled]",
        help="The paper's; only the column of the own class; the mean over all images.",
        callback=renamed_value("containers", "per_class"),
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="per_class, columns or pooled; may be repeated (default: all).",
        callback=renamed_value("containers", "per_class"),
    ),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="[none|correct|similarity|kmeans|em]",
        help="Filter of the training images; may be repeated, applied in order (default: none).",
        rich_help_panel=_FILTERS,
    ),
]
Chains = Annotated[
    list[str] | None,
    typer.Option("--filter", help="none, one of correct, similarity, kmeans, em, or a chain: correct+similarity."),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        help="correct: minimum lead of the label's capsule over the others (default: 0).", rich_help_panel=_FILTERS
    ),
]
Measure = Annotated[
    Literal["pearson", "dot", "cosine"] | None,
    typer.Option(help="similarity: comparison of columns (default: pearson).", rich_help_panel=_FILTERS),
]
KeepFraction = Annotated[
    float | None,
    typer.Option(help="similarity: fraction of each class to keep (default: 0.95).", rich_help_panel=_FILTERS),
]
Margin = Annotated[
    float | None,
    typer.Option(
        help="similarity: minimum lead of the own class over the most similar other, instead of --keep-fraction.",
        rich_help_panel=_FILTERS,
    ),
]
Clusters = Annotated[
    int | None, typer.Option(help="kmeans, em: number of clusters per class (default: 20).", rich_help_panel=_FILTERS)
]
MaxOutlierFraction = Annotated[
    float | None,
    typer.Option(
        help="kmeans, em: largest fraction of a class in outlying clusters (default: 0.05).", rich_help_panel=_FILTERS
    ),
]
Components = Annotated[
    int | None, typer.Option(help="em: number of principal components (default: 16).", rich_help_panel=_FILTERS)
]
Seed = Annotated[
    int | None, typer.Option(help="kmeans, em: seed of the clustering (default: 0).", rich_help_panel=_FILTERS)
]


def parse_iteration(text: str) -> int | Literal["final"]:
    """Return an iteration of ``--iteration``."""
    if text == "final":
        return "final"
    if not text.isdecimal():
        raise typer.BadParameter(f"--iteration {text}: expected a whole number from 1, or final")
    return int(text)


def parse_method(text: str) -> "master.Method":
    """Return a method of ``--method``."""
    from fastcaps.master import Method as MethodName

    if text not in get_args(MethodName):
        raise typer.BadParameter(f"--method {text}: expected one of {', '.join(get_args(MethodName))}")
    return cast("master.Method", text)


def parse_chains(texts: Sequence[str]) -> dict[str, "list[master.Filter]"]:
    """Return the chain of filters that each text names, such as ``correct+similarity``."""
    from fastcaps.master import FILTERS

    chains: dict[str, list[master.Filter]] = {}
    for text in texts:
        names = [] if text == "none" else text.split("+")
        if not set(names) <= set(FILTERS):
            expected = f"none, {', '.join(FILTERS)}, or several of these joined by +"
            raise typer.BadParameter(f"--filter {text}: expected {expected}")
        chains[text] = [FILTERS[name]() for name in names]
    return chains


def parse_filters(names: Sequence[str], options: Mapping[str, Any]) -> list["master.Filter"]:
    """Return filters by name, each with its own options; raise if an option belongs to none of the filters."""
    from fastcaps.master import FILTERS

    for name in names:
        if name not in ("none", *FILTERS):
            raise typer.BadParameter(f"--filter {name}: expected one of none, {', '.join(FILTERS)}")
    if "none" in names and len(names) > 1:
        raise typer.BadParameter(f"--filter none together with {', '.join(n for n in names if n != 'none')}")
    fields = {name: {field.name for field in dataclasses.fields(kind)} for name, kind in FILTERS.items()}
    for option in options:
        owners = [name for name in fields if option in fields[name]]
        if not set(owners) & set(names):
            needed = " or ".join(f"--filter {name}" for name in owners)
            raise typer.BadParameter(f"--{option.replace('_', '-')} is of no use without {needed}")
    return [FILTERS[n](**{k: v for k, v in options.items() if k in fields[n]}) for n in names if n != "none"]

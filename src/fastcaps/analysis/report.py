"""A run as one HTML page that opens from disk: what was compared, with which result, and the confusion matrices."""

import base64
import html
from collections.abc import Sequence
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
td { white-space: nowrap; }
th:first-child, td:first-child, td:last-child { text-align: left; }
td:last-child { white-space: normal; min-width: 14rem; }
.wide { overflow-x: auto; }
img { max-width: 100%; background: #fff; }
small { color: GrayText; }
"""

_MEANINGS = {
    "dynamic": "the routing loop for each image, as trained",
    "fast": "master coefficients, folded into the weights",
    "uniform": "all coefficients 1: no routing at all",
    "ceiling": "each image with its own class's coefficients, which needs the answer",
}


def report_page(found: dict[str, Any], confusion_png: bytes) -> str:
    """The page of an evaluation.

    Args:
        found: what ``evaluation.json`` says.
        confusion_png: the confusion matrices as a picture.
    """
    variants = found["variants"]
    rows = []
    for name, variant in variants.items():
        against = variant["against_dynamic"]
        rows.append(
            [
                name,
                f"{variant['accuracy']:.2%}",
                f"{variant['interval'][0]:.2%} – {variant['interval'][1]:.2%}",
                str(variant["errors"]),
                f"{against['changed']} (+{against['gained']} −{against['lost']})" if against else "",
                f"{variant['images_per_second']:,.0f}" if variant["images_per_second"] else "",
                _MEANINGS[name],
            ]
        )
    generated = " (generated images)" if found["generated"] else ""
    picture = base64.b64encode(confusion_png).decode()
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>fastcaps: {html.escape(found["data"])}</title><style>{_STYLE}</style></head><body>
<h1>{html.escape(found["run"])}</h1>
<p><strong>{html.escape(verdict(found))}</strong></p>
<p>{found["images"]:,} {found["part"]} images of {html.escape(found["data"])}{generated}; {found["threads"]} threads,
batches of {found["batch_size"]}.</p>
<div class="wide">{_table(["routing", "accuracy", "95 %", "errors", "answers changed", "images/s", ""], rows)}</div>
<h2>What is taken for what</h2>
<img alt="Confusion matrices of dynamic and fast routing" src="data:image/png;base64,{picture}">
<p><small>{html.escape(versions)}</small></p>
</body></html>
"""


def verdict(found: dict[str, Any]) -> str:
    """What an evaluation says, in two sentences made of its numbers."""
    dynamic, fast = found["variants"]["dynamic"], found["variants"]["fast"]
    against = fast["against_dynamic"]
    if dynamic["images_per_second"] and fast["images_per_second"]:
        ratio = fast["images_per_second"] / dynamic["images_per_second"]
        speed = f"Without its routing loop the network is {ratio:.1f} times as fast"
    else:
        speed = "Speeds were not measured on so few images"
    return (
        f"{speed}; {against['changed']} of {found['images']:,} answers change, {against['gained']} for the better and "
        f"{against['lost']} for the worse. {against_uniform(found)}"
    )


def against_uniform(found: dict[str, Any]) -> str:
    """What master coefficients are good for: fast routing beside no routing at all, as a paired test says."""
    against = found["variants"]["fast"]["against_uniform"]
    points = 100 * against["difference"]
    counts = f"+{against['gained']} −{against['lost']} answers, McNemar p = {against['p_value']:.2g}"
    if against["p_value"] >= 0.05:
        return (
            f"Fast routing can't be told from all coefficients 1, no routing at all ({points:+.2f} points, {counts})."
        )
    word = "better" if points > 0 else "worse"
    return f"Fast routing is {word} than all coefficients 1, no routing at all ({points:+.2f} points, {counts})."


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

"""HTML pages that open from disk: one style for light, dark, narrow and printed, nothing loaded from elsewhere."""

import html
from collections.abc import Sequence

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d1f21; --faint: #5c6166; --line: #d9dce0; --soft: #f5f6f8;
  --link: #00578a; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181b; --ink: #e8e8e6; --faint: #a7adb3; --line: #383d42; --soft: #202327; --link: #7cc0f0; }
}
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: var(--ink);
  background: var(--paper); max-width: 54rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.25rem; margin: 3rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .6rem; }
a { color: var(--link); }
.verdict { font-size: 1.1rem; border-left: 4px solid #d55e00; padding: .1rem 0 .1rem 1rem; margin: 1rem 0; }
.about, small, footer { color: var(--faint); }
footer h2 { color: var(--ink); }
nav ol { columns: 2 16rem; padding-left: 1.4rem; margin: .5rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .75rem 0; font-variant-numeric: tabular-nums; font-size: .94rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; color: var(--faint); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td:first-child { white-space: normal; }
td small { display: inline-block; line-height: 1.35; }
td:first-child small { min-width: 8rem; }
.name { white-space: nowrap; }
.hint { display: none; }
figure { margin: 1.5rem 0 2.5rem; }
.picture { overflow-x: auto; background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: .6rem;
  text-align: center; }
.picture img { display: block; margin: 0 auto; height: auto; max-width: 100%; }
figcaption { margin-top: .6rem; font-size: .94rem; }
figcaption .see { color: var(--faint); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
@media screen and (max-width: 40rem) { .hint { display: block; margin: -.4rem 0 .4rem; } }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } }
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #000; --faint: #444; --line: #bbb; --soft: #fff; --link: #000; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  nav { display: none; }
  .wide, .picture { overflow: visible; border: 0; padding: 0; }
  .picture img { min-width: 0 !important; max-height: 21cm; object-fit: contain; }
  table { font-size: 8.5pt; }
  th, td { padding: .15rem .4rem; }
  figure, tr, .verdict { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""


def page(title: str, body: str) -> str:
    """A whole page.

    Args:
        title: as plain text.
        body: as HTML.
    """
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{_STYLE}</style></head><body>
{body}</body></html>
"""


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are HTML."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

"""A page that stands alone: one file, no network, no script, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --dim: #5c6570; --paper: #fff; --line: #d9dee4; --good: #1f7a34;
  --bad: #c02b2b; --note: #fff4d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --dim: #a2abb5; --paper: #16181b; --line: #353a41;
  --good: #6bd083; --bad: #ff8a80; --note: #4a3b10; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p { margin: .4rem 0; } .dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.lead { font-size: 1.1rem; } .warn { background: var(--note); padding: .6rem .8rem; border-radius: .4rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--dim); font-weight: 600; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
figure { margin: .5rem 0; overflow-x: auto; }
figure svg { display: block; width: 100%; height: auto; min-width: 34rem; max-width: 56rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .5rem 0; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
"""
Row = Sequence[object]


def document(title: str, parts: Iterable[str]) -> str:
    """Return a whole page; the parts are HTML, the title is text."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head += f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>{escape(title)}</title><style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def figure(svg: str) -> str:
    return f'<figure tabindex="0">{svg}</figure>'


def table(names: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a table; a cell may be a (text, class) pair."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(n)}</dt><dd>{escape(str(v))}</dd>" for n, v in pairs) + "</dl>"


def _cell(cell: object) -> str:
    text, kind = cell if isinstance(cell, tuple) else (cell, "")
    return f'<td class="{kind}">{escape(str(text))}</td>' if kind else f"<td>{escape(str(text))}</td>"

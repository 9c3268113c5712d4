"""Advice as a paceline.toml."""

from __future__ import annotations

import json

from paceline.bench.tune.tune import Advice


def toml(found: Advice) -> str:
    """Return a configuration that `paceline serve --config` takes."""
    best = found.best.best
    about = found.provenance
    lines = [
        f"# Written by `paceline tune`, {about['versions']['paceline']}, {about['date']}, on {about['machine']}.",
        f"# Expected: {best.ratio:.2f} × plain decoding at one request at a time, over all categories.",
    ]
    lines += [f"#   {name}: {p.ratio:.2f} ({p.low:.2f}–{p.high:.2f})" for name, p in best.by_category.items()]
    if found.stops_at is not None:
        lines.append(f"# From {found.stops_at} at a time on nothing is expected; `auto` drafts less there by itself.")
    lines += ["", "[model]", f"model = {json.dumps(found.model)}"]
    if found.pays:
        if best.draft is not None:
            lines.append(f"draft = {json.dumps(best.draft)}")
        lines.append(f"max_draft = {min(2 * best.length, 16)}  # up to; `auto` drafts what pays")
    lines += ["", "[speculation]", f'mode = "{"auto" if found.pays else "off"}"', ""]
    return "\n".join(lines)

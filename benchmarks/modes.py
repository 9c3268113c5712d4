"""The arguments that scripts share, and the modes of `paceline.bench` as arguments."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from paceline import LLM, SamplingParams
from paceline.bench import modes
from paceline.bench.modes import AUTO, PLAIN, WARM_UP, Mode, Modes, forget
from paceline.errors import OptionError

__all__ = ["AUTO", "PLAIN", "WARM_UP", "Mode", "Modes", "arguments", "forget", "listed", "load", "one", "sampling"]


def listed(text: str) -> tuple[Mode, ...]:
    """Parse modes that are separated by commas, for argparse."""
    try:
        return modes.listed(text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def one(text: str) -> Mode:
    """Parse one mode, for argparse."""
    try:
        return Mode.parse(text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def arguments(doc: str | None, max_tokens: int = 64, prompts: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the lines that most scripts have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft", help="a smaller model that drafts")
    parser.add_argument("--drafters", type=lambda names: tuple(names.split(",")), help="default: all that can be had")
    parser.add_argument("--max-draft", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=max_tokens)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path, help="write every number, with where it comes from")
    if prompts:
        parser.add_argument("--prompts", type=Path, nargs="+", default=[Path(__file__).with_name("prompts.jsonl")])
        parser.add_argument("--per-category", type=int, help="prompts of each category; default: all")
    return parser


def load(given: argparse.Namespace, **options: Any) -> LLM:
    """Load what the arguments name. What earlier runs have learnt is left aside: it may be of these very prompts."""
    named = {"draft": given.draft, "drafters": given.drafters, "max_draft": given.max_draft, "keep_costs": False}
    return LLM(given.model, **(named | options))


def sampling(given: argparse.Namespace, **fields: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": given.max_tokens, "temperature": given.temperature, "seed": 1} | fields))

"""An edit with the file as its prediction, against plain decoding: same model and prompt, interleaved in one process.

    python benchmarks/edit.py --model TARGET.gguf
    python benchmarks/edit.py --model TARGET.gguf --max-draft 32 --json out/edit.json

The model is to rename a function in `edit/parcels.py`, where its name stands six times, and to print the whole file.
Each round decodes plainly and with the file as prediction, the next round in the other order, so that a machine that
slows down slows both. The ratio is plain time over speculative time a token; its interval is a bootstrap over rounds.
No round has seen the answer of another.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common import geometric, progress, provenance, write_json
from modes import PLAIN, Mode, Modes, arguments, load, sampling
from trials import a_token

from paceline import Completion, SpeculationParams
from paceline.drafters.prediction import counted

FILE = Path(__file__).with_name("edit") / "parcels.py"
OLD, NEW = "billable_weight", "chargeable_weight"
PROMPT = f"Print this whole file again with `{OLD}` replaced by `{NEW}` in all six places, and nothing else changed."
MODES = (PLAIN.name, "speculative")


@dataclass
class Round:
    """Seconds a token after the first, and the completion, by mode."""

    seconds: dict[str, float] = field(default_factory=dict)
    done: dict[str, Completion] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.seconds["plain"] / self.seconds["speculative"]


def main() -> None:
    given = parse()
    runs = Modes(load(given), sampling(given))
    source = FILE.read_text(encoding="utf-8")
    for mode in MODES:
        decode(runs, source, mode, 16)  # reads the prompt, and what is made at the first step is made
    rounds = []
    for i in range(given.repeat):
        progress(f"round {i + 1} of {given.repeat}")
        rounds.append(measure(runs, source, MODES if i % 2 == 0 else MODES[::-1], given))
    progress("")
    result = summarise(rounds, source) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=1600, prompts=False)
    parser.set_defaults(drafters=("prediction", "lookup"))
    parser.add_argument("--plain-tokens", type=int, help="decode only so many plainly, where a whole file takes long")
    parser.add_argument("--repeat", type=int, default=2, help="rounds; each decodes the answer once in both ways")
    return parser.parse_args()


def decode(runs: Modes, source: str, mode: str, max_tokens: int) -> Completion:
    used = PLAIN if mode == PLAIN.name else Mode(mode, SpeculationParams())
    limits = replace(runs.sampling, max_tokens=max_tokens)
    return runs.run(used, f"```python\n{source}```\n\n{PROMPT}", limits, prediction=source)


def measure(runs: Modes, source: str, order: tuple[str, ...], given: Any) -> Round:
    found = Round()
    for mode in order:
        most = given.plain_tokens if mode == PLAIN.name else None
        done = found.done[mode] = decode(runs, source, mode, most or given.max_tokens)
        found.seconds[mode] = a_token(done)
    return found


def summarise(rounds: list[Round], source: str) -> dict[str, Any]:
    last = rounds[-1].done["speculative"]
    report = last.speculation
    return {
        **geometric([found.ratio for found in rounds]),
        "rounds": [found.seconds for found in rounds],
        "tokens_per_s": {mode: 1 / statistics.median(found.seconds[mode] for found in rounds) for mode in MODES},
        "tokens": len(last.token_ids),
        "finish_reason": last.finish_reason,
        "text": last.text,
        "tokens_compared": sum(len(found.done["plain"].token_ids) for found in rounds),
        "text_identical": all(is_same(found.done["plain"], found.done["speculative"]) for found in rounds),
        "renamed": last.text.count(NEW),
        "is_the_edit": source.replace(OLD, NEW).strip() in last.text,
        "counted": counted(report),
        "steps": report.steps,
        "plain_steps": report.plain_steps,
        "acceptance_length": report.acceptance_length,
        "accepted_at": report.accepted_at,
        "a_step_ms": {part: getattr(report, part) / report.steps for part in ("draft_ms", "verify_ms", "other_ms")},
        "reasons": {str(code): count for code, count in report.reasons.items()},
    }


def is_same(plain: Completion, speculative: Completion) -> bool:
    """Whether the tokens agree as far as plain decoding went."""
    whole = plain.finish_reason == "stop"
    return plain.token_ids == speculative.token_ids[: None if whole else len(plain.token_ids)]


def show(result: dict[str, Any]) -> None:
    speed, tokens, ms = result["tokens_per_s"], result["counted"], result["a_step_ms"]
    print(f"plain {speed['plain']:.1f} tokens/s, with the file as prediction {speed['speculative']:.1f}")
    print(f"ratio {result['ratio']:.2f} ({result['low']:.2f} – {result['high']:.2f}), {len(result['rounds'])} rounds")
    same = "yes" if result["text_identical"] else "NO"
    print(f"same text, token for token: {same}, {result['tokens_compared']} tokens compared")
    print(
        f"{result['tokens']} tokens ({result['finish_reason']}), {result['renamed']} times the new name, "
        f"the file as it should be: {'yes' if result['is_the_edit'] else 'no'}"
    )
    print(
        f"accepted prediction tokens {tokens['accepted_prediction_tokens']}, "
        f"rejected {tokens['rejected_prediction_tokens']}; τ {result['acceptance_length']:.2f} in {result['steps']} "
        f"steps, {result['plain_steps']} of them plain"
    )
    print(f"a step: draft {ms['draft_ms']:.2f}, verify {ms['verify_ms']:.1f}, other {ms['other_ms']:.2f} ms")
    print(f"reasons: {result['reasons'] or 'none'}")


if __name__ == "__main__":
    main()

"""A small real model answers three questions, with speculative decoding and without.

Run by `make demo`. Coloured tokens were guessed by a drafter and confirmed by the model.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.text import Text

from paceline import LLM, Completion, SamplingParams, SpeculationParams

NOTES = """Meeting notes, 14 March. Present: Aylin, Jonas, Priya. The new entrance will be built on the north side.
Aylin orders the stone by Friday. Jonas asks the council about the trees. Priya draws the plan for the ramp. The next
meeting is on 28 March at ten."""

PROMPTS = {
    "repeat a text": f"Copy these notes word for word:\n\n{NOTES}",
    "write code": "Write a Python function that counts the words in a text and returns a dictionary.",
    "free prose": "Why do cyclists ride close behind each other?",
}
GUESSED = "bold green"
COLOURS = {"model": "bold cyan"}


def main() -> None:
    console = Console(highlight=False)
    start = time.perf_counter()
    with console.status("loading SmolLM2-135M-Instruct (the first time its weights are converted)"):
        llm = LLM("demo", progress=lambda what, done, total: None)
    console.print(f"loaded in {time.perf_counter() - start:.1f} s; green was guessed by a drafter, and confirmed\n")
    for kind, prompt in PROMPTS.items():
        console.rule(Text(kind), align="left")
        compare(console, llm, prompt)


def compare(console: Console, llm: LLM, prompt: str) -> None:
    ids = llm.chat_prompt([{"role": "user", "content": prompt}])
    sampling = SamplingParams(max_tokens=112)
    fast = stream(console, llm, ids, sampling)
    with console.status("the same without speculation"):
        plain = [llm.generate(ids, sampling, SpeculationParams(mode="off"))[0] for _ in range(2)]
    # Another tenant's: in the first one's history the answer stands already, and would only be replayed.
    again = llm.generate(ids, sampling, tenant="again")[0]
    report(console, [fast, again], plain)


def stream(console: Console, llm: LLM, ids: list[int], sampling: SamplingParams) -> Completion:
    answer = llm.stream(ids, sampling)
    for event in answer:
        guessed = next((source for source in event.sources if source), None)
        console.print(Text(event.text, style=COLOURS.get(guessed, GUESSED) if guessed else ""), end="", soft_wrap=True)
    console.print()
    return answer.completion


def speed(runs: list[Completion]) -> float:
    """Tokens per second after the first, over all runs: prompts are read in the same way with and without."""
    return sum(len(r.token_ids) - 1 for r in runs) / sum(r.timings.decode_ms / 1e3 for r in runs)


def report(console: Console, fast: list[Completion], plain: list[Completion]) -> None:
    same = all(run.token_ids == plain[0].token_ids for run in [*fast, *plain])
    ratio = speed(fast) / speed(plain)
    account = fast[-1].speculation
    console.print(
        f"\n[bold]same text: {'yes, token for token' if same else 'NO'}[/]   "
        f"plain {speed(plain):.0f} tokens/s, with speculation {speed(fast):.0f}: [bold]{ratio:.2f} ×[/]   "
        f"(accepted {account.accepted} of {account.verified} verified guesses, "
        f"{account.acceptance_length:.1f} tokens a pass)\n"
    )


if __name__ == "__main__":
    main()

"""paceline, plain and governed in one engine; each mode learns alone (`modes.py`) and finds no prompt read already."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import line

sys.path.append(str(Path(__file__).parents[1]))

import modes

from paceline import LLM, SamplingParams


def load(given: dict[str, Any]) -> dict[str, line.Verb]:
    llm = LLM(
        given["target"], draft=given["draft"], sequences=given["sequences"], context=given["context"], keep_costs=False
    )
    runs = modes.Modes(llm, SamplingParams())
    for mode in (modes.PLAIN, modes.AUTO):
        runs.run(mode, modes.WARM_UP, SamplingParams(max_tokens=32))

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        mode = modes.Mode.parse(asked["mode"])
        modes.forget(llm.engine.pool)
        with runs.turn(mode):
            clock = line.Clock()
            request = runs.request(mode, asked["prompt"], SamplingParams(max_tokens=asked["max_tokens"]))
            number = llm.engine.add(request)
            while not llm.engine.idle:
                clock.tick(sum(len(event.token_ids) for event in llm.engine.step()))
            done = llm.engine.completion(number)
            return clock.reply(len(done.token_ids), done.prompt_tokens, done.text)

    def together(asked: dict[str, Any]) -> dict[str, Any]:
        mode = modes.Mode.parse(asked["mode"])
        modes.forget(llm.engine.pool)
        with runs.turn(mode):
            count = line.Together(len(asked["prompts"]))
            limits = SamplingParams(max_tokens=asked["max_tokens"], ignore_eos=True)
            numbers = [llm.engine.add(runs.request(mode, prompt, limits)) for prompt in asked["prompts"]]
            while not llm.engine.idle:
                for event in llm.engine.step():
                    count.add(event.request_id, len(event.token_ids))
                count.passed()
            found = count.reply()
            for number in numbers:
                llm.engine.completion(number)
            return found

    return {"answer": answer, "together": together}


if __name__ == "__main__":
    line.main(load, "paceline", "openvino")

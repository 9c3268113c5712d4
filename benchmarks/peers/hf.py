"""transformers, in bfloat16: plain, assisted by a draft model, or with prompt lookup; all in one process."""

from __future__ import annotations

from typing import Any

import line

LOOKUP_TOKENS = 10


def load(given: dict[str, Any]) -> dict[str, line.Verb]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.generation.streamers import BaseStreamer

    torch.set_num_threads(given["threads"])
    tokenizer = AutoTokenizer.from_pretrained(given["target"])

    def model(directory: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()

    target = model(given["target"])
    extra: dict[str, dict[str, Any]] = {"plain": {}, "lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS}}
    if given["draft"]:
        extra["assisted"] = {"assistant_model": model(given["draft"])}

    class Ticker(BaseStreamer):
        """Is shown the prompt first, then tokens."""

        def __init__(self, clock: line.Clock) -> None:
            self._clock, self._is_prompt = clock, True

        def put(self, value: Any) -> None:
            if not self._is_prompt:
                self._clock.tick(value.numel())
            self._is_prompt = False

        def end(self) -> None:
            pass

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        clock = line.Clock()
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": asked["prompt"]}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        length = ids["input_ids"].shape[1]
        with torch.inference_mode():
            out = target.generate(
                **ids,
                max_new_tokens=asked["max_tokens"],
                do_sample=False,
                streamer=Ticker(clock),
                **extra[asked["mode"]],
            )
        tokens = out[0, length:]
        return clock.reply(len(tokens), length, tokenizer.decode(tokens, skip_special_tokens=True))

    return {"answer": answer}


if __name__ == "__main__":
    line.main(load, "transformers", "torch")

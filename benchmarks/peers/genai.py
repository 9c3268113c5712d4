"""OpenVINO GenAI: plain, with a draft model, or with prompt lookup."""

from __future__ import annotations

from typing import Any

import line

LOOKUP_TOKENS, LOOKUP_NGRAM = 5, 3


def load(given: dict[str, Any]) -> dict[str, line.Verb]:
    import openvino_genai

    extra: dict[str, Any] = {}
    if given["mode"] == "draft":
        extra["draft_model"] = openvino_genai.draft_model(given["draft"], "CPU")
    elif given["mode"] == "lookup":
        extra["prompt_lookup"] = True
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    pipe = openvino_genai.LLMPipeline(given["target"], "CPU", scheduler_config=scheduler, **extra)

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        config = openvino_genai.GenerationConfig(max_new_tokens=asked["max_tokens"], do_sample=False)
        if given["mode"] == "draft":
            config.num_assistant_tokens = given["draft_tokens"]
        elif given["mode"] == "lookup":
            config.num_assistant_tokens, config.max_ngram_size = LOOKUP_TOKENS, LOOKUP_NGRAM
        history = openvino_genai.ChatHistory([{"role": "user", "content": asked["prompt"]}])
        clock = line.Clock()
        done = pipe.generate(history, config, Ticker(clock))
        metrics = done.perf_metrics
        return clock.reply(metrics.get_num_generated_tokens(), metrics.get_num_input_tokens(), done.texts[0])

    class Ticker(openvino_genai.StreamerBase):
        """Sees tokens; a function would see text, which may be held back."""

        def __init__(self, clock: line.Clock) -> None:
            super().__init__()
            self._clock = clock

        def write(self, tokens: Any) -> Any:
            self._clock.tick(len(tokens) if isinstance(tokens, list) else 1)
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    return {"answer": answer}


if __name__ == "__main__":
    line.main(load, "openvino-genai", "openvino")

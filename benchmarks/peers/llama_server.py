"""llama.cpp's server, prebuilt: plain, with a draft model, or with n-grams; asked without HTTP between."""

from __future__ import annotations

import json
from typing import Any

import line


def load(given: dict[str, Any]) -> dict[str, line.Verb]:
    import xllamacpp

    server = xllamacpp.Server(params(given))

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        request = {
            "messages": [{"role": "user", "content": asked["prompt"]}],
            "max_tokens": asked["max_tokens"],
            "temperature": 0,
            "cache_prompt": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        texts: list[str] = []
        usage: dict[str, int] = {}

        def took(chunk: dict[str, Any] | str) -> bool:
            chunk = json.loads(chunk) if isinstance(chunk, str) else chunk
            if "error" in chunk:
                raise RuntimeError(str(chunk["error"]))
            for choice in chunk.get("choices", ()):
                if (text := choice["delta"].get("content")) is not None:
                    clock.tick()
                    texts.append(text)
            usage.update({key: n for key, n in (chunk.get("usage") or {}).items() if isinstance(n, int)})
            return False  # go on

        clock = line.Clock()
        server.handle_chat_completions(request, took)
        return clock.reply(usage["completion_tokens"], usage["prompt_tokens"], "".join(texts))

    return {"answer": answer}


def params(given: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = given["target"], given["context"], 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given["threads"]
    kinds = xllamacpp.common_speculative_type
    if given["mode"] == "draft":
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = params.speculative.draft
        draft.mparams.path, draft.n_max = given["draft"], given["draft_tokens"]
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = given["threads"]
    elif given["mode"] == "ngram":
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_MOD]
    return params


if __name__ == "__main__":
    line.main(load, "xllamacpp")

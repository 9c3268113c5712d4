"""llama.cpp, built for this very processor."""

from __future__ import annotations

from typing import Any

import line


def load(given: dict[str, Any]) -> dict[str, line.Verb]:
    import llama_cpp

    threads = given["threads"]
    llm = llama_cpp.Llama(
        given["target"], n_ctx=given["context"], n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        llm.reset()  # or it would find the prompt's beginning read
        clock = line.Clock()
        chunks = llm.create_chat_completion(
            [{"role": "user", "content": asked["prompt"]}], max_tokens=asked["max_tokens"], temperature=0, stream=True
        )
        texts, prompt_tokens = [], 0
        for chunk in chunks:
            if (text := chunk["choices"][0]["delta"].get("content")) is None:
                continue  # the role comes before anything is read
            if not texts:
                prompt_tokens = llm.n_tokens
                clock.tick()
            texts.append(text)
        # The last token of an answer is made and not read; a chunk is not always a token.
        return clock.reply(llm.n_tokens - prompt_tokens + 1, prompt_tokens, "".join(texts))

    return {"answer": answer}


if __name__ == "__main__":
    line.main(load, "llama-cpp-python")

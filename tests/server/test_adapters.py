"""Other clients: LangChain, LiteLLM, and the curl commands of docs/server.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.server.schemas import IGNORED, ChatBody, CompletionBody, Speculation

from .live import Live, live

DOCS = Path(__file__).parents[2] / "docs" / "server.md"
PROMPT = "Name three rivers."
MESSAGES = [{"role": "user", "content": PROMPT}]
quiet = pytest.mark.filterwarnings("ignore")  # of the other library, at its import

TOOLS = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}<user>{{ m.content }}{% endfor %}<bot>"


@pytest.fixture(scope="module")
def said(plain_toy) -> str:
    return plain_toy.chat(MESSAGES, SamplingParams(max_tokens=24, temperature=0.5, seed=3)).text


@pytest.fixture(scope="module")
def calling(kept) -> Iterator[Live]:
    """A model that knows of tools; what it says is drawn, but for what a grammar makes it say."""
    llm = LLM("toy:ngram")
    llm.tokenizer.chat_template = TOOLS
    with live(llm) as server:
        yield server


@quiet
def test_langchain(toy, said, calling):
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel, ConfigDict, Field

    given: dict[str, Any] = {"model": "toy:ngram", "api_key": "unused", "max_retries": 0, "temperature": 0.5, "seed": 3}
    model = ChatOpenAI(base_url=f"{toy.url}/v1", max_tokens=24, stream_usage=True, **given)
    answer = model.invoke(PROMPT)
    assert answer.content == said
    assert answer.usage_metadata["output_tokens"] == answer.response_metadata["token_usage"]["completion_tokens"]
    chunks = list(model.stream(PROMPT))
    assert "".join(str(chunk.content) for chunk in chunks) == said
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0

    class River(BaseModel):
        """A river."""

        model_config = ConfigDict(extra="forbid")  # a toy would go on and on with keys of its own
        name: str = Field(max_length=6)
        long: bool

    tools = ChatOpenAI(base_url=f"{calling.url}/v1", max_tokens=200, **given)
    for method in ("json_schema", "function_calling"):
        river = tools.with_structured_output(River, method=method, strict=False).invoke(PROMPT)
        assert isinstance(river, River) and len(river.name) <= 6
    (call,) = tools.bind_tools([River], tool_choice="River").invoke(PROMPT).tool_calls
    assert call["name"] == "River" and set(call["args"]) == {"name", "long"}


@quiet
def test_litellm(toy, said, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it asks the network for prices
    import litellm

    given: dict[str, Any] = {
        "model": "openai/toy:ngram",
        "api_base": f"{toy.url}/v1",
        "api_key": "unused",
        "messages": MESSAGES,
        "max_tokens": 24,
        "temperature": 0.5,
        "seed": 3,
        "num_retries": 0,
    }
    answer = litellm.completion(**given)
    assert answer.choices[0].message.content == said
    assert answer.usage.completion_tokens > 0
    stream = litellm.completion(**given, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == said
    with pytest.raises(litellm.BadRequestError, match="temperature is -1"):
        litellm.completion(**given | {"temperature": -1})


def examples() -> list[str]:
    return re.findall(r"^```sh\n(curl .*?)\n```", DOCS.read_text(encoding="utf-8"), re.S | re.M)


def curl(command: str, server: Live) -> str:
    """Run a command of the docs as it stands, but for where the server is and what it has."""
    here = command.replace("http://127.0.0.1:8000", server.url).replace("qwen3.gguf", server.hub.model_id)
    assert here != command
    done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", examples())
def test_commands_of_the_docs(command, demo, calling):
    out = curl(command, calling if '"tools"' in command else demo)
    if '"stream": true' in command:
        assert out.startswith("data: ") and out.rstrip().endswith("data: [DONE]")
        return
    answer = json.loads(out)
    assert "error" not in answer, answer
    assert answer["object"] in ("chat.completion", "text_completion", "list")
    if '"tools"' in command:
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    if '"json_schema"' in command:
        assert json.loads(answer["choices"][0]["message"]["content"])


def test_the_docs_have_commands():
    assert len(examples()) >= 6


def test_the_docs_name_every_parameter():
    text = DOCS.read_text(encoding="utf-8")
    for name in {*ChatBody.model_fields, *CompletionBody.model_fields, *Speculation.model_fields}:
        assert f"`{name}`" in text, name
    ignored = text.partition("### Accepted and ignored")[2].partition("; in `stream_options`")[0]
    assert tuple(re.findall(r"`(\w+)`", ignored)) == IGNORED

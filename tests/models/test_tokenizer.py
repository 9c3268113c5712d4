"""Reading tokenizers from directories, and what must hold of any."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from tokenizers.models import WordLevel

from paceline.errors import CorruptModel, ModelNotFound, RequestError, UnsupportedModel
from paceline.models.gguf_tokenizer import Parts, build
from paceline.models.tokenizer import Tokenizer
from tests.models.test_gguf_tokenizer import WORDS, byte_tables, demo_tokenizer, piece_tables, relaxed

CONTROL = ["<|im_start|>", "<|im_end|>", "<|im_end|><|x|>"]


def chat_tables(*words):
    """A byte-level tokenizer with control tokens, one of which begins with another."""
    tables = byte_tables(words=[*CONTROL, *words])
    tables["tokenizer.ggml.token_type"][256:259] = [3, 3, 3]
    return tables


BYTES = Tokenizer.from_gguf(chat_tables())
PIECES = Tokenizer.from_gguf(piece_tables(WORDS))
START, END, BOTH = 256, 257, 258


@pytest.fixture
def directory(tmp_path):
    def write(tables=None, **files):
        build(tables or piece_tables(WORDS)).backend.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{name}.json").write_text(text)
        return tmp_path

    return write


def test_a_directory_reads_as_the_tables_it_was_made_from(directory):
    read = Tokenizer.from_directory(directory())
    for text in ("the thing", "  é\n🙂 ", ""):
        assert read.encode(text) == PIECES.encode(text)
        assert read.encode(text, add_special=True) == PIECES.encode(text, add_special=True)
        assert read.decode(read.encode(text)) == text
    assert read.vocabulary == PIECES.vocabulary
    assert read.chat_template is None
    assert read.eos_ids == ()
    assert read.bos_id is None


def test_special_tokens_come_from_the_configuration(directory):
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
    path = directory(tokenizer_config=config, special_tokens_map={"unk_token": "<unk>", "eos_token": "<unk>"})
    read = Tokenizer.from_directory(path)
    assert read.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert (read.bos_id, read.eos_ids) == (1, (2,))
    assert read.add_bos


@pytest.mark.parametrize(("stated", "expected"), [(2, (2,)), ([2, 1], (2, 1)), ([1], (2, 1)), (None, (2,))])
def test_ends_come_from_the_generation_configuration(directory, stated, expected):
    path = directory(tokenizer_config={"eos_token": "</s>"}, generation_config={"eos_token_id": stated})
    assert Tokenizer.from_directory(path).eos_ids == expected


def test_the_configuration_says_what_goes_around_a_text(directory):
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": True}
    read = Tokenizer.from_directory(directory(tokenizer_config=config))
    assert not read.add_bos
    assert read.encode("the", add_special=True) == [*read.encode("the"), 2]


def test_a_template_of_its_own_comes_before_the_one_in_the_configuration(directory):
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    path = directory(tokenizer_config={"chat_template": "C"})
    assert Tokenizer.from_directory(path).chat_template == "C"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert Tokenizer.from_directory(path).chat_template == "D"
    (path / "chat_template.jinja").write_text("F")
    assert Tokenizer.from_directory(path).chat_template == "F"


def test_padding_and_truncation_of_the_file_are_off(directory):
    backend = build(piece_tables(WORDS)).backend
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    path = directory()
    backend.save(str(path / "tokenizer.json"))
    assert Tokenizer.from_directory(path).encode("the thing") == PIECES.encode("the thing")


def test_what_is_not_there(tmp_path):
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
    with pytest.raises(ModelNotFound, match="nowhere"):
        Tokenizer.from_directory(tmp_path / "nowhere")


@pytest.mark.parametrize("cut", [0, 1, 50, 0.5, -1])
def test_a_truncated_tokenizer_is_corrupt(directory, cut):
    file = directory() / "tokenizer.json"
    text = file.read_text()
    file.write_text(text[: int(len(text) * cut) if isinstance(cut, float) else cut])
    with pytest.raises(CorruptModel, match=r"tokenizer\.json") as caught:
        Tokenizer.from_directory(file.parent)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_makes_the_library_panic_is_corrupt(directory):
    file = directory() / "tokenizer.json"
    file.write_text(file.read_text().replace('"special_tokens": {', '"special_tokens": {}, "unheard_of": {'))
    with pytest.raises(CorruptModel, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_directory(file.parent)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config": '{"bos_token": "<'}, "not valid JSON"),
        ({"tokenizer_config": "[]"}, "an object is expected"),
        ({"tokenizer_config": "[" * 100_000}, "not valid JSON"),
        ({"tokenizer_config": {"bos_token": 5}}, "bos_token is 5"),
        ({"tokenizer_config": {"chat_template": 5}}, "chat_template is a int"),
        ({"special_tokens_map": "\0"}, "special_tokens_map"),
        ({"generation_config": {"eos_token_id": "x"}}, "eos_token_id is 'x'"),
        ({"generation_config": {"eos_token_id": [-5]}}, "eos_token_id"),
    ],
)
def test_damaged_files_are_named(directory, files, said):
    with pytest.raises(CorruptModel, match=said):
        Tokenizer.from_directory(directory(**files))


def test_files_that_are_not_utf8_are_corrupt(directory):
    path = directory()
    (path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CorruptModel, match="UTF-8"):
        Tokenizer.from_directory(path)
    (path / "tokenizer_config.json").write_bytes(b'"\xff"')
    with pytest.raises(CorruptModel, match="tokenizer_config"):
        Tokenizer.from_directory(path)


def test_other_kinds_of_tokenizers_are_refused():
    backend = Backend(WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        Tokenizer(Parts(backend, {}, ()))


def test_metaspace_is_sentencepiece():
    backend = build(piece_tables(WORDS)).backend
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(Parts(backend, {}, ()))
    assert tokenizer.decode(tokenizer.encode("the a")) == "the a"


def test_text_cannot_spell_special_tokens_unless_it_may():
    text = "<|im_end|>\n<|im_start|>system"
    plain, raw = BYTES.encode(text), BYTES.encode(text, allow_special=True)
    assert not any(map(BYTES.is_special, plain))
    assert (raw[0], raw[2]) == (END, START)
    assert BYTES.decode(plain) == text
    assert BYTES.decode(raw) == "\nsystem"
    assert BYTES.decode(raw, skip_special=False) == text


@relaxed
@given(st.lists(st.sampled_from([*CONTROL, "<|", "|>", "im_end", "é", "\ufdd0", "<", " "])).map("".join))
def test_shielded_text_holds_no_special_token(text):
    ids = BYTES.encode_shielded(BYTES.shield(text))
    assert not any(map(BYTES.is_special, ids))
    assert BYTES.decode(ids) == text.replace("\ufdd0", "\ufffd")


def test_special_tokens_around_shielded_text_count():
    ids = BYTES.encode_shielded("<|im_start|>" + BYTES.shield("<|im_end|>") + "<|im_end|>")
    assert [i for i in ids if BYTES.is_special(i)] == [START, END]


@relaxed
@given(st.text())
def test_text_survives_encoding(text):
    assert BYTES.decode(BYTES.encode(text), skip_special=False) == text
    assert PIECES.decode(PIECES.encode(text)) == text


@relaxed
@given(st.lists(st.integers(-2, 300)))
def test_any_ids_decode(ids):
    assert isinstance(BYTES.decode(ids), str)
    assert isinstance(PIECES.decode(ids), str)


@relaxed
@given(st.lists(st.integers(0, 255)))
def test_bytes_decode_as_the_library_decodes_them(ids):
    assert BYTES.decode(ids) == build(chat_tables()).backend.decode(ids)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(RequestError, match="valid Unicode"):
        BYTES.encode("\ud83d")


def test_ids_without_tokens_add_nothing():
    backend = build(piece_tables(WORDS)).backend
    state = json.loads(backend.to_str())
    del state["model"]["vocab"]["<0x05>"]
    state["model"]["byte_fallback"] = False
    tokenizer = Tokenizer(Parts(Backend.from_str(json.dumps(state)), {}, ()))
    assert tokenizer.vocabulary[8] is None
    assert tokenizer.is_unused(8)
    assert tokenizer.token_bytes(8) == b""
    assert tokenizer.decode([8, 10**9, -1]) == ""


@pytest.mark.parametrize("token", ["éé", "ab é"])
def test_added_tokens_are_spelled_as_they_are(token):
    tables = chat_tables(token)
    added = tables["tokenizer.ggml.tokens"].index(token)
    tables["tokenizer.ggml.token_type"][added] = 4
    tokenizer = Tokenizer.from_gguf(tables)
    assert tokenizer.encode(f"x{token}") == [*tokenizer.encode("x"), added]
    assert tokenizer.decode([added]) == token


def test_threads_do_not_see_each_others_settings():
    text, wrong = "<|im_end|>" * 20, []

    def work(allow):
        for _ in range(200):
            if any(map(BYTES.is_special, BYTES.encode(text, allow_special=allow))) != allow:
                wrong.append(allow)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_demo_has_every_token_it_encodes_to():
    demo = demo_tokenizer()
    assert all(token is not None for token in demo.vocabulary)
    assert demo.decode(demo.encode("naïve café — 12 €")) == "naïve café — 12 €"

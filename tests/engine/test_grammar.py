"""Generated schemas and other grammars through the whole engine: every answer fits, and drafts change none."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from paceline import LLM, Completion, SamplingParams, SpeculationParams
from paceline.core.noise import Stream, gumbel, stream_key
from paceline.core.sampling import Shaping, law
from paceline.core.types import GrammarSpec, Request, Rule
from paceline.drafters.base import Drafter
from paceline.drafters.grammar import Forced
from paceline.drafters.history import History
from paceline.drafters.lookup import Lookup
from paceline.drafters.recycle import Recycle
from paceline.drafters.suffix import Suffix
from paceline.engine.text import TextStream
from paceline.errors import RequestError
from paceline.governor.base import Reason
from paceline.models import grammar, toy
from paceline.models.grammar import Grammars
from paceline.models.tokenizer import Tokenizer
from paceline.runners.toy import ToyRunner
from tests import heads
from tests.models.test_gguf_tokenizer import demo_tokenizer

from .rig import CHAOS, VOCAB, Known, Oracle, Rig, ask, make, model

PLAIN = SpeculationParams("off")
ALWAYS = SpeculationParams("always", max_draft=6)
ANY = GrammarSpec("json_object")
"""Where it is the mask itself that a test brings."""


class Schemas:
    """Draws schemas; every string and array is short, so that answers come to an end."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def spec(self) -> GrammarSpec:
        return GrammarSpec("json_schema", json.dumps(self.object(3)))

    def object(self, depth: int) -> dict[str, Any]:
        names = self._dice.sample(["id", "name", "größe", "tags", "is valid", "in:out", 'quo"te', "x"], 4)
        names = names[: self._dice.randint(1, 4)]
        found: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.any(depth - 1) for name in names},
            "required": [name for name in names if self._dice.random() < 0.7],
        }
        return found | ({"additionalProperties": False} if self._dice.random() < 0.9 else {})

    def any(self, depth: int) -> dict[str, Any]:
        leaves = [self.integer, self.number, self.string, self.formatted, self.listed, self.constant]
        if depth <= 0 or self._dice.random() < 0.5:
            return self._dice.choice(leaves)()
        return self._dice.choice([self.object, self.array, self.either, self.reference])(depth)

    def array(self, depth: int) -> dict[str, Any]:
        least = self._dice.randint(0, 2)
        return {"type": "array", "items": self.any(depth - 1), "minItems": least, "maxItems": least + 1}

    def either(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self.any(depth - 1), {"type": "null"}, self.any(0)]}

    def reference(self, depth: int) -> dict[str, Any]:
        return {"$defs": {"part": self.any(0)}, "type": "object", "properties": {"part": self.any(0)}}

    def integer(self) -> dict[str, Any]:
        low = self._dice.randint(-300, 300)
        return {"type": "integer", "minimum": low, "maximum": low + self._dice.choice([0, 5, 400, 10**6])}

    def number(self) -> dict[str, Any]:
        low = self._dice.randint(-9, 9)
        return {"type": "number", "minimum": low, "exclusiveMaximum": low + self._dice.choice([1, 20])}

    def string(self) -> dict[str, Any]:
        pattern = self._dice.choice([None, "^[a-z]{2,5}$", "^(ab|cd)+x$", r"^\d{3}-\d{2}$", '^[A-Z][^\\\\"]{0,4}!$'])
        if pattern is not None:
            return {"type": "string", "pattern": pattern}
        return {"type": "string", "minLength": self._dice.randint(0, 3), "maxLength": self._dice.randint(3, 8)}

    def formatted(self) -> dict[str, Any]:
        return {"type": "string", "format": self._dice.choice(["date", "uuid", "ipv4", "email", "time", "date-time"])}

    def listed(self) -> dict[str, Any]:
        return {"enum": self._dice.sample(["red", "green", "reddish", "🙂", 7, 7.5, None, True, [1], {"a": "b"}], 3)}

    def constant(self) -> dict[str, Any]:
        return self._dice.choice([{"const": "a constant"}, {"type": "boolean"}, {"type": "null"}])


@dataclass(frozen=True, slots=True)
class Clerk:
    """A law over the demo model's tokens that likes to come to the end of what it writes."""

    seed: int = 0
    order: int = 2
    noise: float = 0.0

    @property
    def vocab_size(self) -> int:
        return len(demo_tokenizer().vocabulary)

    def logits(self, context: Sequence[int]) -> NDArray[np.float32]:
        return _clerk(self, tuple(context[-self.order :]))


@cache
def _bonus() -> NDArray[np.float64]:
    """Tokens that end strings, lists, objects, numbers and texts are likelier than the many others."""
    pieces = [demo_tokenizer().token_bytes(i) for i in range(len(demo_tokenizer().vocabulary))]
    found = np.array([17.0 if p.strip(b'"}],:@.') == b"" else 8.0 if len(p) == 1 else 0.0 for p in pieces])
    found[[not p.strip() for p in pieces]] = -9.0
    found[list(demo_tokenizer().eos_ids)] = 24.0
    return found


@lru_cache(400)
def _clerk(who: Clerk, seen: tuple[int, ...]) -> NDArray[np.float32]:
    ids, key = np.arange(who.vocab_size, dtype=np.int64), hash(seen) % 2**50
    found = _bonus() + 2.5 * gumbel(stream_key(who.seed, key, Stream.TARGET), ids)
    return (found + who.noise * gumbel(stream_key(who.seed, key, Stream.DRAFT), ids)).astype(np.float32)


@cache
def demo_grammars() -> Grammars:
    found = demo_tokenizer()
    return Grammars(found, len(found.vocabulary), found.eos_ids)


@cache
def byte_grammars() -> Grammars:
    return Grammars(toy.tokenizer(), toy.VOCAB_SIZE, (toy.EOS_ID,))


def clerks(drafters: dict[str, Drafter]) -> Rig:
    rig = make(
        drafters,
        Clerk(),
        length=6,
        blocks=400,
        context=256,
        eos=demo_tokenizer().eos_ids,
        text=lambda request: TextStream(demo_tokenizer(), request),
    )
    rig.engine._grammars = demo_grammars()
    return rig


def crew() -> dict[str, Drafter]:
    """Every drafter that a law can have, chains and trees, some of it forbidden."""
    runner = ToyRunner(replace(Clerk(), noise=0.5), 512, 4)
    runner.allocate(400)
    return {
        "grammar": Forced(),
        "suffix": Suffix(History()),
        "lookup": Lookup(),
        "recycle": Recycle(),
        "oracle": Oracle(Clerk(), miss=0.3, width=2),
        "model": model(Clerk(), noise=0.5),
    }


def check(spec: GrammarSpec, done: Completion, tokenizer: Tokenizer) -> bool:
    """Assert that an answer fits its schema, or begins one that does; return whether it is whole."""
    if done.finish_reason == "stop":
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.Draft202012Validator(json.loads(spec.text), format_checker=checker).validate(json.loads(done.text))
        return True
    assert done.finish_reason == "length", done.error
    assert begins(spec, b"".join(tokenizer.token_bytes(token) for token in done.token_ids)), done.text
    return False


def begins(spec: GrammarSpec, text: bytes) -> bool:
    """Whether some text of the grammar begins so, asked byte by byte."""
    spelled = [toy.tokenizer().encode(chr(byte))[0] for byte in range(128)]
    matcher = byte_grammars().matcher(spec)
    tokens = [spelled[byte] if byte < 128 else _high()[byte] for byte in text]
    return all(matcher.allowed(tokens[:i])[token] for i, token in enumerate(tokens))


@cache
def _high() -> dict[int, int]:
    pieces = {toy.tokenizer().token_bytes(i): i for i in range(256)}
    return {byte: pieces[bytes([byte])] for byte in range(128, 256)}


def clerk_answers(specs: Sequence[GrammarSpec], seed: int) -> tuple[int, int]:
    """Check schemas on the law; return how many answers are whole, and how many drafted tokens were accepted."""
    requests = []
    for i, spec in enumerate(specs):
        for temperature in (0.0, 1.0):
            asked = ask((65 + i % 20, 66), temperature=temperature, seed=seed + i, max_tokens=70)
            requests.append(replace(asked, grammar=spec))
    plain = clerks({}).run(requests)
    drafted = clerks(crew()).run(requests)
    assert [d.token_ids for d in drafted] == [d.token_ids for d in plain]
    whole = [check(r.grammar, d, demo_tokenizer()) for r, d in zip(requests, drafted, strict=True) if r.grammar]
    return sum(whole), sum(d.speculation.accepted for d in drafted)


def specs(count: int, seed: int) -> list[GrammarSpec]:
    return [Schemas(seed + i).spec() for i in range(count)]


def test_a_few_schemas_on_a_law_of_real_tokens() -> None:
    whole, accepted = clerk_answers(specs(5, seed=0), seed=0)
    assert whole >= 4 and accepted > 100


def test_a_name_that_the_tokenizer_spells_in_several_ways() -> None:
    """Where the library forced the tokenizer's own spelling, this mask hung on where its matcher had been before."""
    whole, _ = clerk_answers(specs(20, seed=100)[:4], seed=5)
    assert whole >= 2


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_two_hundred_schemas_on_a_law_of_real_tokens(part: int) -> None:
    whole, accepted = clerk_answers(specs(20, seed=20 * part), seed=part)
    assert whole >= 16 and accepted > 300


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """With every drafter: it drafts for itself, and has heads that were never trained."""
    shape = replace(
        heads.EAGLE3, width=576, target_width=576, vocab_size=49152, draft_vocab_size=1000, taps=(1, 14, 26)
    )
    directory = tmp_path_factory.mktemp("heads")
    heads.write(directory, *heads.published(heads.make(shape)))
    names = ("grammar", "prediction", "suffix", "lookup", "recycle", "heads", "model")
    return LLM("demo", draft="demo", heads=str(directory), drafters=names, context=768, max_draft=6, keep_costs=False)


def demo_answers(llm: LLM, specs: Sequence[GrammarSpec], seed: int, first: int = 0) -> tuple[int, int]:
    """Check schemas on the demo model, batches of them, greedy and drawn; return as `clerk_answers` does."""
    requests = []
    for i, spec in enumerate(specs, first):
        messages = [{"role": "user", "content": f"Give an example of JSON that fits this schema: {spec.text[:400]}"}]
        sampling = SamplingParams(max_tokens=160, temperature=i % 2 * 0.9, seed=seed + i)
        wish = SpeculationParams() if i % 4 > 1 else ALWAYS
        requests.append(llm.request(llm.chat_prompt(messages), sampling, wish, '{"name": "red"}', grammar=spec))
    plain = llm.run([replace(request, speculation=PLAIN) for request in requests])
    drafted = llm.run(requests)
    assert [d.token_ids for d in drafted] == [d.token_ids for d in plain]
    whole = [check(spec, done, llm.tokenizer) for spec, done in zip(specs, drafted, strict=True)]
    return sum(whole), sum(d.speculation.accepted for d in drafted)


def test_a_few_schemas_on_the_demo_model(demo: LLM) -> None:
    whole, accepted = demo_answers(demo, specs(4, seed=2000), seed=1)
    assert whole >= 2 and accepted > 15


def test_a_text_that_was_read_further_than_it_went(demo: LLM) -> None:
    """The library's own way back left a matcher here whose masks were not those of a new one."""
    demo_answers(demo, specs(20, seed=20)[11:12], seed=1, first=23)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_two_hundred_schemas_on_the_demo_model(demo: LLM, part: int) -> None:
    """Each greedy and drawn."""
    asked = [spec for spec in specs(20, seed=20 * part) for _ in range(2)]
    whole, accepted = demo_answers(demo, asked, seed=part)
    assert whole >= 12 and accepted > 100, "nearly all were cut off, or nothing was drafted"


GRAMMARS = {
    "object": GrammarSpec("json_object"),
    "regex": GrammarSpec("regex", "(yes|no|maybe)(, (very|not) much){0,3}"),
    "lark": GrammarSpec("lark", 'start: N ("+" N)*\nN: /[0-9]{1,3}/'),
}
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0},
    "narrow": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalised": {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_tokens": 6},
}


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("params", SAMPLING)
def test_any_grammar_and_parameter_on_a_toy(kind: str, params: str) -> None:
    llm = toys()
    sampling = SamplingParams(max_tokens=40, seed=3, bad_words=("no",), **SAMPLING[params])
    plain = llm.generate(["?", "abc"], sampling, PLAIN, grammar=GRAMMARS[kind])
    for rule in ("coupled", "ratio", "block"):
        found = llm.generate(["?", "abc"], sampling, replace(ALWAYS, rule=rule), grammar=GRAMMARS[kind])
        if rule == "coupled" or params == "greedy":
            assert [d.token_ids for d in found] == [d.token_ids for d in plain]
        for done in found:
            assert done.finish_reason in ("stop", "length")
            pieces = [toy.tokenizer().token_bytes(token) for token in done.token_ids if token != toy.EOS_ID]
            assert begins(GRAMMARS[kind], b"".join(pieces))


@cache
def toys() -> LLM:
    return LLM("toy:ngram", draft="toy:ngram-draft", keep_costs=False)


def test_a_stream_a_stop_string_and_a_batch_beside_it() -> None:
    llm, spec = toys(), GRAMMARS["lark"]
    free, bound = (
        llm.request(text, SamplingParams(max_tokens=20, temperature=1.0, seed=4), ALWAYS, grammar=grammar)
        for text, grammar in (("ab", None), ("?", spec))
    )
    beside = llm.run([free, bound, free])
    assert [d.token_ids for d in beside] == [llm.run([r])[0].token_ids for r in (free, bound, free)]
    stream = llm.stream("?", SamplingParams(max_tokens=20, temperature=1.0, seed=4, stop=("+",)), ALWAYS, grammar=spec)
    text = "".join(event.text for event in stream)
    assert text == stream.completion.text == beside[1].text.split("+")[0]


def test_what_cannot_be_served_is_refused() -> None:
    llm = toys()
    with pytest.raises(RequestError, match="unclosed group"):
        llm.generate("?", grammar=GrammarSpec("regex", "("))
    with pytest.raises(RequestError, match="ignore_eos"):
        llm.generate("?", SamplingParams(ignore_eos=True), grammar=ANY)
    with pytest.raises(RequestError, match="takes none"):
        make().add(replace(ask([1]), grammar=ANY))
    assert llm.engine.idle


@pytest.mark.parametrize("wish", [PLAIN, ALWAYS, replace(ALWAYS, rule="block")])
def test_a_grammar_that_leads_nowhere_ends_its_request_alone(wish: SpeculationParams) -> None:
    llm = toys()
    dead = GrammarSpec("lark", 'start: "ab" more\nmore: more "x"')
    sampling = SamplingParams(max_tokens=10, seed=1)
    requests = [llm.request("?", sampling, wish, grammar=spec) for spec in (dead, GRAMMARS["regex"])]
    [failed, fine] = llm.run(requests)
    assert failed.finish_reason == "error" and failed.text in ("a", "ab")
    assert failed.error is not None and "leads no further after 2 tokens" in failed.error
    assert fine.token_ids == llm.run(requests[1:])[0].token_ids


def lost(self: grammar._Place, output: Sequence[int]) -> bool:
    """Go on from wherever it stands, and forget to go back."""
    ahead = list(output[len(self._tokens) :])
    self._tokens += ahead[: self.matcher.try_consume_tokens(ahead)]
    return True


def test_negative_control_a_matcher_that_does_not_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparisons above find it out."""
    asked = ask((65, 66), temperature=1.0, seed=1, max_tokens=40)
    requests = [replace(asked, grammar=spec) for spec in specs(4, seed=1000)]
    plain = clerks({}).run(requests)
    monkeypatch.setattr(grammar._Place, "go_to", lost)
    drafted = clerks(crew()).run(requests)
    assert [d.token_ids for d in drafted] != [d.token_ids for d in plain]


@dataclass
class Cells:
    """A mask that hangs on the last token alone, so that the law under it is known."""

    size: int
    asked: int = 0
    rows: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = np.random.default_rng(3).random((self.size, self.size)) < 0.6
        np.fill_diagonal(self.rows, val=True)

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        self.asked += 1
        found: NDArray[np.bool_] = self.rows[output[-1]] if output else np.ones(self.size, np.bool_)
        return found

    def forced(self, output: Sequence[int], most: int) -> list[int]:
        return []


@dataclass
class Always:
    """Grammars that are one mask."""

    mask: Any

    def check(self, spec: GrammarSpec) -> None:
        pass

    def matcher(self, spec: GrammarSpec) -> Any:
        return self.mask


TARGET = Known(vocab_size=6, order=2, spread=0.7, seed=21)


def sampled(rule: Rule, mask: Any, requests: int = 120) -> dict[tuple[int, ...], int]:
    """How often which three tokens stand in a row; the drafter's law knows the mask, or not."""
    drafter = model(replace(TARGET, noise=0.6), noise=0, blocks=2000)
    rig = make({"model": drafter}, TARGET, length=3, sequences=64, blocks=1200, prefill_rows=2000, eos=())
    rig.engine._grammars = Always(mask)
    dice, seen = random.Random(0), dict[tuple[int, ...], int]()
    for _ in range(requests):
        asked = ask(dice.choices(range(6), k=2), SpeculationParams(rule=rule), max_tokens=40, temperature=1.0)
        rig.engine.add(replace(asked, sampling=replace(asked.sampling, seed=dice.getrandbits(64)), grammar=ANY))
    verified = 0
    while not rig.engine.idle:
        for event in rig.engine.step():
            if event.finish_reason:
                done = rig.engine.completion(event.request_id)
                verified += done.speculation.verified
                for three in zip(done.token_ids, done.token_ids[1:], done.token_ids[2:], strict=False):
                    seen[three] = seen.get(three, 0) + 1
    assert verified > requests * 10
    return seen


def p_value(seen: dict[tuple[int, ...], int], mask: Cells) -> float:
    """Pearson's test of what follows each two tokens against the masked law."""
    statistic, freedom, ids = 0.0, 0, np.arange(6)
    for two in {three[:2] for three in seen}:
        observed = np.array([seen.get((*two, token), 0) for token in ids], float)
        p = law(TARGET.logits(two), Shaping(SamplingParams(temperature=1.0), grammar=mask), two).at(ids)
        if observed[p == 0].any():
            return 0.0
        expected = p * observed.sum()
        common = expected >= 5
        cells = [*zip(observed[common], expected[common], strict=True)]
        statistic += sum((o - e) ** 2 / e for o, e in cells)
        freedom += max(0, len(cells) - 1)
    return float(stats.chi2.sf(statistic, freedom))


@pytest.mark.parametrize("rule", ["coupled", "ratio", "block"])
def test_the_law_is_the_masked_one(rule: Rule) -> None:
    mask = Cells(6)
    assert p_value(sampled(rule, mask), mask) > 0.01
    assert mask.asked > 1000


@dataclass
class Blind(Cells):
    """Looks at the token before the last."""

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        return super().allowed(output[:-1])


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_negative_control_a_mask_of_another_row(rule: Rule) -> None:
    assert p_value(sampled(rule, Blind(6)), Cells(6)) < 1e-6


def test_forbidden_drafts_are_dropped_and_said_so() -> None:
    """A tree of wild guesses: what the mask forbids is not verified, what it allows is."""
    rig = make({"oracle": Oracle(CHAOS, miss=0.3, width=3)}, length=9)
    mask = Cells(VOCAB)
    rig.engine._grammars = Always(mask)
    requests: list[Request] = [replace(ask([1, 2], temperature=1.0, seed=s), grammar=ANY) for s in range(4)]
    done = rig.run(requests)
    assert all(d.speculation.reasons[Reason.GRAMMAR] > 0 for d in done)
    assert sum(d.speculation.accepted for d in done) > 10
    plain = make({})
    plain.engine._grammars = Always(mask)
    assert [d.token_ids for d in plain.run(requests)] == [d.token_ids for d in done]

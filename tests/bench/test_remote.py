"""Servers measured from outside: ours for real, others by their dialects, broken ones by their faults."""

from __future__ import annotations

import json

import pytest

from paceline import LLM
from paceline.bench.client import Client
from paceline.bench.published import of_metrics, total
from paceline.bench.remote import RemoteBench, parse
from paceline.bench.result import ALL
from paceline.bench.workloads import Item, Workload
from paceline.core.types import SamplingParams
from paceline.errors import OptionError, PacelineError
from tests.server.live import live

from .dialects import Fake, event, served
from .test_published import AFTER, BEFORE

ITEMS = (Item("chat", "Name three rivers."), Item("chat", "Say it twice."), Item("code", "Write a loop."))
WORKLOAD = Workload("mine", ITEMS)


def measured(url: str, batches=(1,), modes: str | None = None, workload=WORKLOAD, tokens: int = 24) -> RemoteBench:
    bench = RemoteBench(parse(url, modes, None), workload, SamplingParams(tokens, 0.0))
    bench.run(batches, 1, lambda what, done, whole: None)
    return bench


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("PACELINE_API_KEY", raising=False)
        yield


@pytest.fixture(scope="module")
def ours(kept):
    with live(LLM("toy:ngram", draft="toy:ngram-draft"), {"audit": {"share": 0.0}}) as server:
        yield server


class TestOurs:
    def test_modes_take_turns_on_one_server(self, ours):
        found = measured(ours.url, (1, 2), "plain,off,always").result()
        assert {cell.mode for cell in found.cells} == {"plain", "off", "always"}
        assert {cell.batch for cell in found.cells} == {1, 2}
        assert {(c.mode, c.against) for c in found.comparisons} == {("off", "plain"), ("always", "plain")}
        assert found.text_identical.different == 0 < found.text_identical.prompts
        assert found.provenance["published_by"] == "paceline"
        assert set(found.noise) == {"1", "2"}

    def test_counts_are_the_servers_own(self, ours):
        bench = measured(ours.url, modes="plain,always")
        cells = {cell.mode: cell for cell in bench.result().cells if cell.category == ALL}
        assert cells["plain"].acceptance_length == 1 and cells["plain"].acceptance_rate is None
        fast = cells["always"]
        assert fast.acceptance_length > 1 and 0 < fast.acceptance_rate <= 1
        assert fast.acceptance_length == pytest.approx(fast.tokens / fast.steps)
        assert sum(fast.accepted_at) == fast.tokens - fast.steps
        assert fast.verify_ms > 0 and 0 <= fast.wasted_share < 1 and fast.coverage > 0

    def test_what_it_publishes_as_vllm_agrees_with_what_it_says_of_each_answer(self, ours):
        """The same counters under vLLM's names, read before and after, beside the sum of `usage.speculation`."""
        client, before = Client(ours.url), []
        bench = RemoteBench(parse(ours.url, "always", None), WORKLOAD, SamplingParams(24, 0.0))

        def say(what: str, done: int, whole: int) -> None:
            if whole > 1 and not before:  # warmed up
                ours.settle()
                before.append(client.text("/metrics"))

        bench.run((1,), 1, say)
        ours.settle()
        said = total([each.published for each in bench.seen])
        counted = of_metrics(before[0], client.text("/metrics"), [], said.committed)
        assert said.accepted > 0
        assert (counted.verified, counted.accepted) == (said.verified, said.accepted)
        assert (counted.accepted_at, counted.passes) == (said.accepted_at, said.passes)

    def test_answers_are_not_drafted_from_themselves(self, kept):
        """The same prompt comes again; with a control that a server would replay what it has said."""
        with live(LLM("toy:chaos"), {"audit": {"share": 0.0}}) as server:
            client = Client(server.url)
            model, prompt = client.about()[0], [{"role": "user", "content": "Once more."}]

            def accepted(history: bool) -> int:
                wish = {"mode": "always", "drafters": ["suffix"], "history": history}
                answer = client.chat(model, prompt, max_tokens=60, temperature=0, seed=1, speculation=wish)
                return int(answer.usage["speculation"]["accepted"])

            alone = accepted(False)
            assert accepted(False) == alone
            accepted(True)
            assert accepted(False) == alone
            assert accepted(True) > alone + 20

    def test_two_servers_are_compared_by_name(self, ours):
        with served(Fake()) as other:
            found = measured(f"ours={ours.url},other={other.url}").result()
        assert {(c.mode, c.against) for c in found.comparisons} <= {("other", "ours")}
        assert found.text_identical.different > 0
        assert found.differences and found.differences[0].mode == "other"


class TestOthers:
    def test_vllm(self):
        with served(Fake(pages=[BEFORE, AFTER] * 3 + [BEFORE, AFTER])) as fake:
            bench = measured(fake.url, workload=Workload("one", ITEMS[:1]))
        first = bench.seen[0].published
        assert (first.by, first.verified, first.accepted) == ("vllm", 12, 8)
        assert bench.result().provenance["published_by"] == "vllm"

    def test_llama(self):
        timings = {"predicted_n": 8, "draft_n": 6, "draft_n_accepted": 3}
        with served(Fake(timings=timings)) as fake:
            cell = measured(fake.url).result().cells[-1]
        assert cell.mode == "server" and cell.acceptance_length == 8 / 5 and cell.acceptance_rate == 0.5

    def test_one_that_publishes_nothing(self):
        with served(Fake()) as fake:
            found = measured(fake.url).result()
        assert found.provenance["published_by"] == "nobody"
        assert found.cells[-1].acceptance_length is None and found.cells[-1].tokens_per_s > 0

    def test_requests_say_what_was_asked_and_the_key(self):
        with served(Fake()) as fake:
            ways = parse(fake.url + "/v1", None, "sesame")
            RemoteBench(ways, WORKLOAD, SamplingParams(24, 0.5)).run((2,), 1, lambda *_: None)
        asked = fake.asked[-1]
        assert (asked["max_tokens"], asked["temperature"], asked["stream"]) == (24, 0.5, True)
        assert asked["stream_options"] == {"include_usage": True} and "speculation" not in asked
        assert set(fake.keys) == {"Bearer sesame"}
        assert {ask["messages"][0]["content"] for ask in fake.asked[1:]} == {item.prompt for item in ITEMS}


class TestFaults:
    def test_modes_where_there_are_none(self):
        with served(Fake()) as fake, pytest.raises(OptionError, match="plain=URL"):
            parse(fake.url, "plain,auto", None)

    @pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:99999", "http://a?b", "a=http://b,a=http://c",
                                     "a=http://b,c"])  # fmt: skip
    def test_addresses_that_are_none(self, url):
        with pytest.raises(OptionError) as caught:
            parse(url, None, None)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("key", ["a\nb", "ğ"])
    def test_keys_that_are_none(self, key):
        with pytest.raises(OptionError, match="key"):
            Client("http://127.0.0.1:1", key)

    def test_nobody_is_there(self):
        with served(Fake()) as fake:
            url = fake.url
        with pytest.raises(PacelineError, match="does not answer"):
            parse(url, None, None)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"status": 503}, "503: not today"),
            ({"tail": b""}, "in the middle"),
            ({"tail": b"data: {nonsense\n\n"}, "than JSON"),
            ({"tail": b"data: " + b"[" * 100_000 + b"\n\n"}, "than JSON"),
            ({"tail": event({"error": {"message": "out of memory"}})}, "broke off: out of memory"),
            ({"usage": {"completion_tokens": None}}, "how many tokens"),
        ],
    )
    def test_answers_that_are_none(self, changes, said):
        with served(Fake(**changes)) as fake, pytest.raises(PacelineError, match=said):
            measured(fake.url)

    @pytest.mark.parametrize("odd", [[], 3, {"choices": [7]}, {"choices": [{"delta": 3}]}, {"choices": 5},
                                     {"usage": 3, "timings": 4}, {"choices": [{"delta": {"content": 5}}]}])  # fmt: skip
    def test_odd_events_are_passed_over(self, odd):
        with served(Fake(tail=event(odd) + b"data: [DONE]\n\n")) as fake:
            assert measured(fake.url).result().cells[-1].tokens == 8 * 6

    def test_what_was_measured_is_kept_when_it_breaks_off(self):
        fake = Fake()
        with served(fake):
            bench = RemoteBench(parse(fake.url, None, None), WORKLOAD, SamplingParams(8))

            def say(what: str, done: int, whole: int) -> None:
                if done == 3:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                bench.run((1,), 1, say)
        assert len(bench.seen) == 3
        json.dumps(bench.result().as_json())

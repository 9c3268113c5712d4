"""`paceline report`: what it says, as text, as JSON and as a page; and what it refuses."""

from __future__ import annotations

import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from paceline.bench import plots
from paceline.cli import report_table
from paceline.engine.llm import LLM
from paceline.errors import MissingExtra
from paceline.server import journal_schema as schema
from tests.server.live import live
from tests.server.test_account_report import ROW, Writer

HOSTILE = "<script>alert(1)</script> [red]x[/red] $\\frac{ & \x1b[2J\nsecond\u202eline"


@pytest.fixture
def journal(tmp_path):
    writer = Writer(tmp_path / "journal.db")
    yield writer
    writer.db.close()


@pytest.fixture
def week(journal):
    """A week in which there is something of everything."""
    now = time.time()
    for day in range(7):
        journal.request(at=now - 60 - day * 86_400, saved_ms=400.0 - 150 * day, reasons={"low_acceptance": 3})
    journal.switch(now - 400, "off", "latency: ttft p95 is 900 ms, target 500 ms; off for 60 s")
    journal.switch(now - 340, "auto", "the pause after it was off (latency) is over")
    journal.alarm(now - 400, "latency_target", "ttft p95 is 900 ms")
    journal.audit("different", at=now - 30, position=11, gap=0.75)
    journal.audit("equal", at=now - 30)
    return journal


@pytest.fixture
def hostile(journal):
    now = time.time()
    schema.add_request(journal.db, replace(ROW, at=now - 30, id=HOSTILE, key=HOSTILE, saved_ms=-9.0))
    schema.add_request(journal.db, replace(ROW, at=now - 30, mode=HOSTILE, rule=HOSTILE, reasons={HOSTILE: 1}))
    journal.switch(now - 20, "off", HOSTILE)
    journal.alarm(now - 20, HOSTILE, HOSTILE)
    schema.add(journal.db, "audits", (now - 10, HOSTILE, "different", 3, None))
    return journal


def test_a_week_in_words(run, week) -> None:
    result = run("report", str(week.path))
    assert (result.code, result.err) == (0, "")
    said = " ".join(result.out.split())
    assert "7 requests, 140 tokens; 7 speculated, 0 failed, 0 were broken off" in said
    assert "Speculation lost 0.4 s against plain decoding, 0.94 × plain; 4 requests were slower, by 1.1 s" in said
    assert "Audits: 1 equal, 0 near-ties, 1 different, 0 without a verdict" in said
    assert "of 2 audited answers, 1 had another text" in said and "docs/runbooks/audit-difference.md" in said
    assert "switched speculation off 1 time, 60 s in all (latency)" in said
    assert "low_acceptance 21" in said and "latency_target" in said and "75%" in said
    assert "0.750" in said


def test_json_is_one_object_alone(run, week) -> None:
    result = run("report", str(week.path), "--json")
    assert result.code == 0 and result.err == ""
    assert result.json["total"]["requests"] == 7 and result.json["total"]["saved_ms"] == -350.0
    assert result.json["off"][0]["name"] == "latency" and result.json["audits"]["different"] == 1
    assert {"different_text", "off_latency", "slower_than_plain"} <= {each["name"] for each in result.json["findings"]}


def test_the_account_of_a_server_that_runs(run, tmp_path) -> None:
    """What the report says is what the server's own answers said, and how long it was off."""
    path, usages = tmp_path / "journal.db", []
    ask = {"prompt": "one two three one two three", "max_tokens": 40, "speculation": {"mode": "always"}}
    with (
        live(LLM("toy:ngram"), {"journal": {"file": str(path)}, "audit": {"share": 0.0}}) as server,
        server.client() as http,
    ):
        for mode in ("always", "off", "always"):
            assert http.post("/admin/speculation", json={"mode": mode}).status_code == 200
            usages += [http.post("/v1/completions", json=ask).json()["usage"] for _ in range(2)]
        server.settle()
        assert server.hub.journal.flush()
        found = run("report", str(path), "--json").json
    assert found["total"]["requests"] == 6
    assert found["total"]["completion_tokens"] == sum(usage["completion_tokens"] for usage in usages)
    for name in ("steps", "plain_steps", "drafted", "verified", "accepted", "saved_ms", "wasted_ms"):
        assert found["total"][name] == pytest.approx(sum(usage["speculation"][name] for usage in usages)), name
    assert found["total"]["accepted"] > 0
    assert found["total"]["speculated"] == 4 and set(found["by_mode"]) == {"always, coupled"}, "mode is what was asked"
    [off] = found["off"]
    assert (off["name"], off["times"], off["unended"]) == ("operator", 1, 0) and off["seconds"] > 0


def test_days(run, week) -> None:
    assert run("report", str(week.path), "--days", "1.5", "--json").json["total"]["requests"] == 2


def test_an_empty_journal_and_an_empty_week_are_said_plainly(run, journal) -> None:
    result = run("report", str(journal.path))
    assert result.code == 0 and "The journal is empty: nothing was served yet." in result.out
    assert "Nothing stands out." in result.out and "By day" not in result.out
    journal.request(at=time.time() - 9 * 86_400)
    result = run("report", str(journal.path))
    assert result.code == 0 and "No requests in this time. The last entry is of " in result.out


def test_a_journal_that_begins_later_says_so(run, journal) -> None:
    journal.request(at=time.time() - 3600)
    assert "what was before is not known" in " ".join(run("report", str(journal.path)).out.split())


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and not (value or "#").startswith("#")]


def read_page(path) -> tuple[str, Tags]:
    text = path.read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    return text, tags


def test_the_page_has_it_all_and_needs_nothing(run, week, tmp_path) -> None:
    page = tmp_path / "week.html"
    assert run("report", str(week.path), "--html", str(page)).code == 0
    text, tags = read_page(page)
    assert tags.tags.count("svg") == 2 and tags.links == [] and "script" not in tags.tags
    for part in ("Worth looking at", "By day (UTC)", "Audits that differ", "low_acceptance", "0.750", "-0.4 s"):
        assert part in text.replace("\u2212", "-"), part


def test_a_page_of_an_empty_week(run, journal, tmp_path) -> None:
    page = tmp_path / "week.html"
    assert run("report", str(journal.path), "--html", str(page), "--json").code == 0
    text, tags = read_page(page)
    assert "nothing was served yet" in text and "svg" not in tags.tags


def test_hostile_texts_stay_texts(run, hostile, tmp_path) -> None:
    page = tmp_path / "hostile.html"
    result = run("report", str(hostile.path), "--html", str(page))
    assert result.code == 0
    assert "\x1b" not in result.out and "\u202e" not in result.out and "[red]x[/red]" in result.out
    text, tags = read_page(page)
    assert "script" not in tags.tags and "&lt;script&gt;alert(1)" in text
    assert "\x1b" not in text and "\u202e" not in text


def test_the_hostile_texts_would_be_seen(run, hostile, tmp_path, monkeypatch) -> None:
    """The control of the test above: without cleaning, they come through."""
    monkeypatch.setattr(report_table, "clean", str)
    monkeypatch.setattr("paceline.bench.document.escape", str)
    page = tmp_path / "hostile.html"
    assert "\u202e" in run("report", str(hostile.path), "--html", str(page)).out
    assert "script" in read_page(page)[1].tags


def test_a_page_that_cannot_be_drawn_is_refused_before_anything_is_read(refused, tmp_path, monkeypatch) -> None:
    def missing() -> None:
        raise MissingExtra("plots need matplotlib")

    monkeypatch.setattr(plots, "require", missing)
    assert refused("report", str(tmp_path / "none.db"), "--html", "x.html") == "plots need matplotlib"


def test_a_page_that_cannot_be_written(refused, week, tmp_path) -> None:
    assert "cannot be written" in refused("report", str(week.path), "--html", str(tmp_path / "no" / "x.html"))


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf", "9999", "week", ""])
def test_days_that_are_none_are_refused(refused, week, days: str) -> None:
    assert refused("report", str(week.path), "--days", days).startswith("days is ")


def test_files_that_are_no_journal_are_refused(refused, tmp_path, week) -> None:
    assert "is not there" in refused("report", str(tmp_path / "none.db"))
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"no database " * 99)
    assert "is no SQLite file, or is damaged" in refused("report", str(damaged), "--json")
    week.db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    assert "has schema 2" in refused("report", str(week.path))

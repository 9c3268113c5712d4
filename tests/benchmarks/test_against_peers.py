"""Peers that are made up: workers that answer, crash, babble and hang; turns, clean ends, figures, environments."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.benchmarks.scripts import BENCHMARKS, script
from tests.benchmarks.test_peers_environments import Pip

against = script("against_peers")
engines, environments, summary, workers = (
    script(f"peers.{name}") for name in ("engines", "environments", "summary", "workers")
)

PEER = f"""
import sys, time
sys.path.insert(0, {str(BENCHMARKS / "peers")!r})
import line

def load(given):
    if given["mode"] == "unloadable":
        raise OSError("no such model")

    def answer(asked):
        mode, is_real = asked["mode"], asked["max_tokens"] != 8
        if mode == "crash" and is_real:
            line.os._exit(3)
        if mode == "babble" and is_real:
            line.os.write(3, b"[WARN] hello" + bytes([10]))
            time.sleep(60)
        if mode == "hang" and is_real:
            time.sleep(60)
        if mode == "refuse" and is_real:
            raise ValueError("too long")
        print("what a library prints")
        clock = line.Clock()
        clock.tick()
        time.sleep(0.01)
        return clock.reply(asked["max_tokens"], len(asked["prompt"]), asked["prompt"])

    def together(asked):
        count = line.Together(len(asked["prompts"]))
        for i in range(asked["max_tokens"]):
            for which in range(len(asked["prompts"])):
                count.add(which, 1)
            count.passed()
        return count.reply()

    return {{"answer": answer, "together": together}}

line.main(load, "pip")
"""


@pytest.fixture
def peer(tmp_path):
    path = tmp_path / "peer.py"
    path.write_text(textwrap.dedent(PEER), encoding="utf-8")
    return path


@pytest.fixture
def begin(peer, tmp_path):
    """Starts workers, and sees to it that none is left."""
    begun = []

    def start(mode, patience=20.0):
        told = json.dumps({"mode": mode, "threads": 1})
        log = tmp_path / "logs" / f"{mode}.log"
        begun.append(workers.Worker(mode, [sys.executable, str(peer), told], log, patience))
        begun[-1].ready(30.0)
        return begun[-1]

    yield start
    for worker in begun:
        worker.end()
    assert not any(psutil.pid_exists(worker.pid) for worker in begun)


def asked(mode, prompt="abc", max_tokens=5):
    return {"do": "answer", "mode": mode, "prompt": prompt, "max_tokens": max_tokens}


def state(worker):
    """Return what the system says, when it has come to say it."""
    time.sleep(0.05)
    return psutil.Process(worker.pid).status()


def test_a_worker_answers_and_what_libraries_print_is_no_reply(begin, tmp_path):
    worker = begin("good")
    assert worker.versions["pip"]
    reply = worker.ask(asked("good"))
    assert (reply["tokens"], reply["first_tokens"], reply["prompt_tokens"], reply["begins"]) == (5, 1, 3, "abc")
    assert reply["decode_s"] >= 0.01 > 0 <= reply["first_s"]
    assert reply["peak_mib"] > 1
    assert reply["digest"] == worker.ask(asked("good"))["digest"] != worker.ask(asked("good", "abd"))["digest"]
    assert "what a library prints" in (tmp_path / "logs" / "good.log").read_text()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("crash", r"crash ended \(exit 3\)"),
        ("hang", "hang did not answer within 0.3 s"),
        ("babble", "babble said b'.WARN. hello.n', which is no reply"),
        ("refuse", "refuse said: ValueError: too long"),
    ],
)
def test_one_that_fails_is_named_with_what_it_did(begin, mode, why):
    worker = begin(mode, patience=0.3 if mode == "hang" else 20.0)
    with pytest.raises(workers.Failed, match=why):
        worker.ask(asked(mode))


def test_one_that_cannot_load_says_why(begin):
    with pytest.raises(workers.Failed, match="unloadable said: OSError: no such model"):
        begin("unloadable")


def test_one_that_is_gone_is_not_waited_for(begin):
    worker = begin("good")
    worker.end()
    with pytest.raises(workers.Failed, match="good is gone"):
        worker.ask(asked("good"))


def test_who_waits_stands_still_and_all_are_ended(begin):
    with workers.Crew(begin, room=0.0) as crew:
        with crew.turn("left", "plain") as left:
            assert state(left) != psutil.STATUS_STOPPED
        assert state(left) == psutil.STATUS_STOPPED
        with crew.turn("right", "plain") as right:
            assert (state(left), state(right) != psutil.STATUS_STOPPED) == (psutil.STATUS_STOPPED, True)
        with crew.turn("left", "plain") as again:
            assert again is left
            assert again.ask(asked("plain"))["tokens"] == 5
        assert crew.starts == {"left": 1, "right": 1}
    assert not psutil.pid_exists(left.pid) and not psutil.pid_exists(right.pid)


@pytest.mark.parametrize("error", [KeyboardInterrupt, workers.Failed, RuntimeError])
def test_an_error_in_a_turn_ends_the_worker_and_ctrl_c_all(begin, error):
    seen = []

    def turns():
        with workers.Crew(begin, room=0.0) as crew:
            with crew.turn("idle", "plain") as idle:
                seen.append(idle)
            with crew.turn("busy", "plain") as busy:
                seen.append(busy)
                raise error

    with pytest.raises(error):
        turns()
    assert len(seen) == 2 and not any(psutil.pid_exists(worker.pid) for worker in seen)


def test_where_memory_is_short_who_idled_longest_goes_and_comes_back(begin):
    free = iter([9.0, 9.0, 1.0, 9.0, *[1.0] * 9])
    with workers.Crew(begin, room=5.0, last="ours", free=lambda: next(free)) as crew:
        pids = {}
        for name in ("ours", "b", "c", "d"):
            with crew.turn(name, "plain") as worker:
                pids[name] = worker.pid
        assert [name for name, pid in pids.items() if not psutil.pid_exists(pid)] == ["b"]
        with crew.turn("b", "plain"):
            alive = [name for name, pid in pids.items() if psutil.pid_exists(pid)]
        assert alive == [], "it never became enough"
        assert crew.starts == {"ours": 1, "b": 2, "c": 1, "d": 1}


def test_a_worker_dies_with_its_parent_even_when_stopped(peer, tmp_path):
    told = json.dumps({"mode": "good", "threads": 1})
    code = f"""
    import sys, pathlib, os
    sys.path.insert(0, {str(BENCHMARKS)!r})
    from peers.workers import Worker
    worker = Worker("x", [sys.executable, {str(peer)!r}, {told!r}], pathlib.Path({str(tmp_path / "log")!r}), 20)
    worker.ready(20)
    worker.pause()
    print(worker.pid, flush=True)
    os._exit(9)
    """
    import subprocess

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    until = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)


def engine(name, peer, modes, together=False):
    return engines.Engine(name, str(peer), "gguf", modes, None, together)


def bench(peer, tmp_path, used, *arguments):
    model, prompts = tmp_path / "m.gguf", tmp_path / "prompts.jsonl"
    model.touch()
    rows = [{"category": "ab"[i % 2], "prompt": f"{i}"} for i in range(5)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = against.parse(
        [
            *("--model", str(model), "--prompts", str(prompts), "--environments", str(tmp_path), "--room", "0.0"),
            *("--json", str(tmp_path / "out.json"), "--max-tokens", "5", *arguments),
        ]
    )
    given.only = tuple(engines.Configuration(each, mode) for each in used for mode in each.modes)
    return against.Bench(given, rows)


def test_all_answer_all_in_turns_that_interleave(peer, tmp_path, capsys):
    used = engine("paceline", peer, ("plain", "auto"), together=True), engine("other", peer, ("plain",))
    made = bench(peer, tmp_path, used, "--rounds", "2", "--block", "2", "--batch", "1,3")
    made.run()
    made.save(whole=True)
    result = json.loads((tmp_path / "out.json").read_text())
    turns = [(each["round"], each["prompt"] // 2, each["configuration"]) for each in result["measurements"]]
    blocks = [turns[i : i + 6] for i in (0, 6, 15, 21)]
    for turn, block in zip(((0, 0), (0, 1), (1, 0), (1, 1)), blocks, strict=True):
        assert {each[:2] for each in block} == {turn}
        names = [each[2] for each in block]
        assert names == [name for name in dict.fromkeys(names) for _ in range(2)], "a block is one turn"
        assert set(names) == {"paceline:plain", "paceline:auto", "other:plain"}
    assert len({tuple(each[2] for each in block) for block in blocks}) > 1, "the order is drawn anew"
    assert result["starts"] == {"paceline": 1} or result["starts"] == {"paceline": 1, "other:plain": 1}
    assert result["versions"]["paceline"]["pip"]
    assert result["summary"]["prompts"] == 5
    together = [(each["batch"], each["configuration"], each["all_tokens"]) for each in result["batches"]]
    assert sorted(set(together)) == [(n, f"paceline:{m}", 5 * n) for n in (1, 3) for m in ("auto", "plain")]
    against.summary.show(result)
    shown = capsys.readouterr().out
    assert "paceline:auto / the best peer of each category" in shown
    assert "one process, and so one peak: paceline:plain, paceline:auto" in shown


def test_those_that_fail_are_left_out_and_the_others_go_on(peer, tmp_path, capsys):
    used = engine("paceline", peer, ("plain",)), engine("x", peer, ("good", "crash", "babble", "refuse", "unloadable"))
    made = bench(peer, tmp_path, used)
    made.run()
    made.save(whole=True)
    result = made.result
    assert result["left_out"].keys() == {"x:crash", "x:babble", "x:refuse", "x:unloadable"}
    answered = [each["configuration"] for each in result["measurements"]]
    assert answered.count("x:good") == answered.count("paceline:plain") == len(answered) / 2 == 5
    against.summary.show(result)
    assert "left out: x:crash: x:crash ended (exit 3)" in capsys.readouterr().out


def test_what_cannot_be_made_is_left_out_before_anything_runs(peer, tmp_path):
    broken = engines.Engine("broken", str(peer), "gguf", ("plain",), environments.Recipe((), "import nothing_like_it"))
    drafts = engines.Engine("drafts", str(peer), "gguf", ("draft",), None, drafting=("draft",))
    made = bench(peer, tmp_path, (broken, drafts, engine("good", peer, ("plain",))))
    made._environments = environments.Environments(tmp_path, Pip(fails="venv"))
    made.run()
    assert made.result["left_out"]["drafts:draft"] == "it needs --draft"
    assert "venv" in made.result["left_out"]["broken:plain"]
    assert {each["configuration"] for each in made.result["measurements"]} == {"good:plain"}


def test_ctrl_c_loses_nothing(peer, tmp_path, monkeypatch):
    made = bench(peer, tmp_path, (engine("paceline", peer, ("plain",)),), "--block", "1")
    asked_before, ask = [], workers.Worker.ask

    def interrupted(self, request):
        asked_before.append(self.pid)
        if len(asked_before) == 5:  # each turn has a warm-up
            raise KeyboardInterrupt
        return ask(self, request)

    monkeypatch.setattr(against.Worker, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert len(json.loads((tmp_path / "out.json").read_text())["measurements"]) == 2
    assert not psutil.pid_exists(asked_before[0])


def test_names_are_engines_or_configurations():
    names = [each.name for each in engines.chosen("vllm:plain,genai,vllm:plain")]
    assert names == ["vllm:plain", "genai:plain", "genai:draft", "genai:lookup"]
    with pytest.raises(argparse.ArgumentTypeError, match="there is no 'vlm'; allowed: paceline, llama-native"):
        engines.chosen("vlm")
    assert {each.engine.script for each in engines.ALL} == {
        path.name for path in (BENCHMARKS / "peers").glob("*.py") if "line.main(" in path.read_text(encoding="utf-8")
    }
    assert set(engines.IN_BATCHES) <= {each.name for each in engines.ALL}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "toy:ngram"], "is no .gguf file"),
        (["--model", "nothing-there"], "nothing-there"),
        (["--model", "gone.gguf"], "there is no file gone.gguf"),
        (["--limit", "0"], "no whole number from 1"),
        (["--threads", "9999"], "processors"),
        ([], "--model is needed"),
        (["--model", "m.gguf", "--ov-draft", "d"], "forms of --draft"),
        (["--model", "m.gguf", "--batch", "1,2", "--only", "genai"], "--only has none of them"),
    ],
)
def test_what_cannot_be_is_refused(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("m.gguf").touch()
    with pytest.raises(SystemExit):
        against.parse(arguments)
    assert said in capsys.readouterr().err


def test_our_own_worker_answers_in_both_modes(tmp_path):
    told = {"target": "toy:ngram", "draft": "toy:ngram-draft", "threads": 1, "sequences": 2, "context": 400}
    command = [sys.executable, str(BENCHMARKS / "peers" / "ours.py"), json.dumps(told)]
    worker = workers.Worker("ours", command, tmp_path / "log", 60.0)
    try:
        worker.ready(60.0)
        plain, auto = (worker.ask(asked(mode, "abab", 20)) for mode in ("plain", "auto"))
        assert plain["digest"] == auto["digest"] and plain["tokens"] == auto["tokens"] == 20
        assert plain["first_tokens"] == 1
        both = {"do": "together", "mode": "auto", "prompts": ["ab", "cd"], "max_tokens": 12}
        found = worker.ask(both)
        assert found["all_tokens"] == 24 > found["tokens"] > 0
        assert found["all_seconds"] > found["seconds"] > 0
    finally:
        worker.end()
    assert os.getpid() != worker.pid and not psutil.pid_exists(worker.pid)

"""What only a process of its own shows: start-up, pipes, signals and terminals."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from paceline import __version__
from paceline.cli.answer import heard
from tests.cli.conftest import command, slow, start

LONG = ("--model", "toy:chaos", "--raw", "--max-tokens", "500")


def finish(process: subprocess.Popen[bytes], data: bytes | None = None) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(data, timeout=60)
    return process.returncode, out, err


class TestHelp:
    @pytest.mark.parametrize("arguments", [("--help",), ("generate", "--help"), ("--version",)])
    def test_is_quick_since_it_imports_nothing_heavy(self, arguments):
        script = f"import sys; sys.argv[1:] = {list(arguments)!r}\nfrom paceline.cli import main\nmain()\n"
        script += "print(sorted({'openvino', 'torch', 'transformers', 'tokenizers', 'gguf'} & sys.modules.keys()))"
        code, out, err = finish(start([sys.executable, "-c", script]))
        assert (code, err) == (0, b"")
        assert out.splitlines()[-1] == b"[]"

    def test_names_every_command_and_option(self, run):
        top = run("--help")
        assert top.code == 0
        assert run().out == top.out
        for name in ("generate", "chat", "inspect"):
            assert name in top.out
        promised = (
            "model draft drafters heads max-draft rule no-speculation runner weights head-weights kv numerics "
            "max-tokens temperature top-p top-k min-p seed stop raw prediction show-draft json"
        )
        for name in ("generate", "chat"):
            shown = run(name, "--help").out
            assert set(re.findall(r"--[\w-]+", shown)) >= {f"--{option}" for option in promised.split()}
        assert {"--model", "--draft", "--json"} <= set(re.findall(r"--[\w-]+", run("inspect", "--help").out))

    def test_version(self):
        assert finish(start(command("--version"))) == (0, f"paceline {__version__}\n".encode(), b"")


class TestPipes:
    def test_a_reader_that_leaves_is_no_error(self):
        with start(slow("generate", "bicycle", *LONG)) as process:
            process.stdout.read(3)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(60) == 141

    def test_nor_is_it_for_a_table(self):
        read, write = os.pipe()
        os.close(read)
        with start(command("inspect", "--model", "toy:ngram"), stdout=write) as process:
            os.close(write)
            assert process.wait(60) == 141
            assert process.stderr.read() == b""

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a Linux device")
    def test_a_full_disk_at_the_other_end(self):
        with open("/dev/full", "wb") as full:
            code, _, err = finish(start(command("generate", "bicycle", *LONG), stdout=full))
        assert code == 2
        assert err.startswith(b"paceline: No space left on device")
        assert err.count(b"\n") == 1


class TestInterrupts:
    def test_while_it_generates(self):
        process = start(slow("generate", "bicycle", *LONG))
        process.stdout.read(3)
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
        assert code == 130
        assert out.endswith(b"\n")
        assert b"Traceback" not in err
        assert b"tokens (stopped)" in err

    def test_while_it_starts(self):
        process = start(slow("generate", "bicycle", *LONG, mark=1, pause=0.5))
        assert process.stderr.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert finish(process) == (130, b"", b"")

    def test_json_is_whole_or_not_there(self):
        process = start(slow("generate", "bicycle", *LONG, "--json", mark=200))
        assert process.stderr.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert finish(process) == (130, b"", b"")

    def test_a_chat_without_a_terminal_ends(self):
        with start(slow("chat", *LONG)) as process:
            process.stdin.write(b"hello\n")
            process.stdin.flush()
            process.stdout.read(3)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130

    def test_the_first_waits_for_the_step_and_the_second_does_not(self):
        before = signal.getsignal(signal.SIGINT)
        with heard() as interrupt:
            assert not interrupt.asked
            signal.raise_signal(signal.SIGINT)
            assert interrupt.asked
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before


class Screen:
    """A program on a terminal."""

    def __init__(self, arguments: Sequence[str], **environment: str) -> None:
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.execve(arguments[0], arguments, os.environ | {"TERM": "xterm"} | environment)
        self.shown, self._passed = b"", 0

    def until(self, wanted: bytes) -> None:
        """Read on until this is shown, after what was waited for before."""
        deadline = time.monotonic() + 30
        while (at := self.shown.find(wanted, self._passed)) < 0:
            assert time.monotonic() < deadline, self.shown[-500:]
            self._read()
        self._passed = at + len(wanted)

    def type(self, keys: bytes) -> None:
        time.sleep(0.3)  # a line editor that has just shown its prompt may not be listening yet
        os.write(self._terminal, keys)

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        if not select.select([self._terminal], [], [], 1)[0]:
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            return False
        self.shown += data
        return bool(data)


class TestTerminals:
    def test_a_conversation(self):
        screen = Screen(slow("chat", *LONG))
        screen.until(b"> ")
        screen.type(b"hello\r")
        screen.until(b"hello\r\n")
        time.sleep(0.5)
        screen.type(b"\x03")
        screen.until(b"tokens (stopped)")
        screen.until(b"> ")
        screen.type(b"/reset\r")
        screen.until(b"> ")
        screen.type(b"\x04")
        assert screen.end() == 0

    def test_ctrl_c_at_the_prompt_leaves(self):
        screen = Screen(command("chat", "--model", "toy:ngram"))
        screen.until(b"> ")
        screen.type(b"\x03")
        assert screen.end() == 130
        assert screen.shown.endswith(b"\r\n")

    def test_what_takes_long_is_shown_and_wiped_away(self):
        screen = Screen(slow("generate", "hello", "--model", "toy:ngram", "--max-tokens", "4", pause=0.1))
        assert screen.end() == 0
        bar, text = screen.shown.split(b"\x1b[?25h")
        assert b"\x1b[?25l" in bar
        assert b"tokens (length)" in text

    def test_colours(self):
        arguments = slow("generate", "abc", "--model", "toy:table", "--max-tokens", "60", "--show-draft", pause=0)
        screen = Screen(arguments)
        assert screen.end() == 0
        assert re.search(rb"\x1b\[3[1-6]m", screen.shown)
        plain = Screen(arguments, NO_COLOR="1")
        assert plain.end() == 0
        assert not re.search(rb"\x1b\[3[1-6]m", plain.shown)

"""`headrace bench` on a real terminal: what it draws while it runs fits, and leaves nothing behind."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from struct import pack

import pytest

from tests.net.awkward import answer_well, awkward_server

pytestmark = pytest.mark.slow

SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")
LOAD = ("--rate", "20", "--prompt-tokens", "4-8", "--output-tokens", "3", "--seed", "1", "--alone", "0")
ENDS_S = 60.0


class Screen:
    """So much of a terminal as a live view needs; what it does not know fails the test."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""]
        self.row = self.column = 0
        self.has_cursor = True
        self.wrapped = list[str]()
        self.seen = list[str]()

    def feed(self, said: str) -> None:
        end = 0
        for found in SEQUENCE.finditer(said):
            assert found.start() == end, f"not understood: {said[end : found.start()]!r}"
            end = found.end()
            if found[2]:
                self._control(found[1], found[2])
            elif found[0] == "\r":
                self.column = 0
            elif found[0] == "\n":
                self._down()
            else:
                self._write(found[0])
        assert end == len(said), f"not understood: {said[end:]!r}"

    def _control(self, numbers: str, kind: str) -> None:
        match numbers, kind:
            case _, "m":
                pass
            case (("?25l" | "?25"), ("l" | "h")):
                self.has_cursor = kind == "h"
            case "2", "K":
                self.lines[self.row] = ""
            case _, "A":
                up = int(numbers or 1)
                assert up <= min(self.row, self.rows - 1), "the view is higher than the terminal"
                self.row -= up
            case _:
                pytest.fail(f"a control of another kind: {numbers}{kind}")

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def _write(self, text: str) -> None:
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + text + line[self.column + len(text) :]
        self.column += len(text)
        self.seen.append(text)
        if self.column > self.columns:
            self.wrapped.append(self.lines[self.row])


def run_on(
    columns: int, rows: int, *arguments: str, ctrl_c_after: str | None = None
) -> tuple[Screen, int, bool]:
    """The screen at the end, the exit code, and whether the terminal's settings are as before."""
    terminal, inside = pty.openpty()
    ioctl(inside, termios.TIOCSWINSZ, pack("HHHH", rows, columns, 0, 0))
    before = termios.tcgetattr(inside)
    code = "import sys; from headrace.cli.main import main; sys.exit(main())"
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-c", code, "bench", *arguments],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=environment | {"TERM": "xterm"},
        start_new_session=True,
    )
    screen, rest, until = Screen(columns, rows), b"", time.monotonic() + ENDS_S
    try:
        while time.monotonic() < until:
            has_ended = child.poll() is not None
            if select.select([terminal], [], [], 0.05)[0]:
                rest += os.read(terminal, 65_536)
                whole, rest = _whole(rest)
                screen.feed(whole)
                if ctrl_c_after is not None and ctrl_c_after in "".join(screen.seen):
                    child.send_signal(signal.SIGINT)
                    ctrl_c_after = None
            elif has_ended:
                break
        assert child.poll() is not None, f"it goes on after {ENDS_S} s: {screen.lines}"
        after = termios.tcgetattr(inside)
        return screen, child.wait(10), before == after
    finally:
        child.kill()
        child.wait(10)
        os.close(terminal)
        os.close(inside)


def _whole(said: bytes) -> tuple[str, bytes]:
    """Without a character or a sequence that has only begun."""
    cut = max(said.rfind(b"\n"), said.rfind(b"K"), said.rfind(b"h")) + 1
    return said[:cut].decode(), said[cut:]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (44, 8)])
def test_nothing_wraps_and_the_live_view_is_gone_at_the_end(columns: int, rows: int) -> None:
    with awkward_server(answer_well) as url:
        screen, code, is_as_before = run_on(columns, rows, url, *LOAD, "--duration", "3")

    assert code in (0, 4), screen.lines
    assert any("━" in text or "─" in text for text in screen.seen), "the bar was drawn"
    assert any("in flight" in text for text in screen.seen)
    assert screen.wrapped == []
    assert not any("in flight" in line or "━" in line or "─" in line for line in screen.lines)
    assert any("TTFT over time" in line for line in screen.lines), "the report is what is left"
    assert screen.has_cursor
    assert is_as_before


def test_ctrl_c_leaves_the_terminal_as_it_was_and_tells_what_was_measured() -> None:
    with awkward_server(answer_well) as url:
        load = (*LOAD, "--duration", "60", "--warm-up", "0")
        screen, code, is_as_before = run_on(80, 24, url, *load, ctrl_c_after="in flight")

    assert code == 130, screen.lines
    assert screen.has_cursor
    assert is_as_before
    assert not any("in flight" in line or "Traceback" in line for line in screen.lines)
    assert any("TTFT over time" in line for line in screen.lines)
    assert screen.wrapped == []

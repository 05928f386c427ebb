"""A terminal gets lines that fit it, and colours unless NO_COLOR is set; a pipe gets neither."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import FileIO
from unittest import mock

import pytest

from incumbent.cli.main import main
from incumbent.cli.text import _COLOURED, _coloured
from incumbent.model import Ask, Key
from incumbent.runtime.link import link_for
from tests.cli.tool import environment, incumbent

HOLDER = "a-holder-with-a-name-of-sixty-characters-in-a-pod-of-a-cluster"
NAMES = ("short", "a/name/that/is/long/enough/to/need/a/line/for/itself/on/a/phone")


@pytest.fixture
def held(store: str) -> str:
    for name in NAMES:
        link_for(store).store.take(Key("default", name), "c", Ask(60.0, HOLDER), float("inf"))
    incumbent("-s", store, "pause", "stopped")
    return store


def shown(columns: int, *words: str, **variables: str) -> list[str]:
    """The lines that a terminal of this width gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**environment(), "NO_COLOR": "", **variables}
    with (
        os.fdopen(theirs, "w") as terminal,
        mock.patch.dict(os.environ, env, clear=True),
        redirect_stdout(terminal),
    ):
        assert main(list(words)) == 0
    with os.fdopen(ours, "rb", buffering=0) as screen:
        text = b"".join(pieces_of(screen)).decode()
    return text.replace("\r\n", "\n").splitlines()


def pieces_of(screen: FileIO) -> Iterator[bytes]:
    """What it shows, once nobody writes any more: the kernel may hand it over in pieces."""
    with suppress(OSError):  # EIO: nobody has the terminal open
        while piece := screen.read(65_536):
            yield piece


def plain(line: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", line)


@pytest.mark.parametrize("columns", [60, 80, 132])
@pytest.mark.parametrize("words", ["status", "status --held", "status --all", "jobs"])
def test_no_line_is_wider_than_the_terminal(held: str, columns: int, words: str) -> None:
    lines = shown(columns, "-s", held, *words.split())
    assert max(len(plain(line)) for line in lines) <= columns
    if words == "status --held":
        assert len(lines) == 1 + len(NAMES), "a line a name"
        assert any("…" in line for line in lines)


def test_a_wide_terminal_gets_whole_names(held: str) -> None:
    text = "\n".join(shown(200, "-s", held, "status", "--held"))
    assert NAMES[1] in text
    assert HOLDER in text


def test_a_terminal_gets_colours_and_the_words_stay_whole(held: str) -> None:
    text = "\n".join(shown(80, "-s", held, "status"))
    assert "\x1b[32mheld\x1b[0m" in text
    assert "\x1b[33mpaused\x1b[0m" in text


def test_with_no_color_a_terminal_gets_none(held: str) -> None:
    coloured = shown(80, "-s", held, "status")
    lines = shown(80, "-s", held, "status", NO_COLOR="1")
    assert not any("\x1b" in line for line in lines)
    first = [line.split()[:2] for line in lines]
    assert first == [plain(line).split()[:2] for line in coloured]


def test_an_empty_no_color_is_none(held: str) -> None:
    assert any("\x1b" in line for line in shown(80, "-s", held, "status", NO_COLOR=""))


def test_a_pipe_gets_neither_colours_nor_cuts(held: str) -> None:
    text = incumbent("-s", held, "status", "--held").stdout
    assert "\x1b" not in text
    assert NAMES[1] in text
    assert HOLDER in text


def test_what_failed_and_what_doctor_finds_have_colours(held: str) -> None:
    row = "job  every 1m  in 3s  failed (3) x2  1s  timed out  3  ok"
    assert plain(_COLOURED.sub(_coloured, row)) == row
    shown_row = _COLOURED.sub(_coloured, row)
    assert "\x1b[31mfailed (3) x2\x1b[0m" in shown_row
    assert "\x1b[31mtimed out\x1b[0m" in shown_row
    doctor = "\n".join(shown(200, "-s", held, "doctor"))
    assert "\x1b[32mok\x1b[0m      " in doctor
    assert "\x1b" not in "\n".join(shown(200, "-s", held, "doctor", NO_COLOR="1"))

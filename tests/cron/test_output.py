"""What a command writes reaches the log in whole lines, and nobody waits for a log."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from incumbent import clock
from incumbent.cron import output as module
from incumbent.cron.events import LONGEST_EVENT, Events
from incumbent.cron.output import Output, _Lines
from tests.support.waiting import eventually

SLOT = "2026-11-21T05:30:00Z"
MANY = 100_000


class Log:
    """A pipe as our standard output; what was read of it."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.text = bytearray()
        self._reader = threading.Thread(target=self._read)

    def read(self) -> None:
        """Begin to read."""
        self._reader.start()

    def _read(self) -> None:
        while data := os.read(self.reading, 1 << 16):
            self.text += data

    def end(self) -> list[dict[str, Any]]:
        """All events, once no process writes."""
        os.close(self.writing)
        if not self._reader.ident:
            self.read()
        self._reader.join()
        os.close(self.reading)
        return [json.loads(line) for line in self.text.splitlines()]


@contextmanager
def followed(log: Log, most: int = 0) -> Iterator[tuple[Output, Events]]:
    output, events = Output(log.writing), Events(log.writing, job="x")
    output.pass_on(most, events, SLOT)
    yield output, events.written_by(output.put)
    output.drain()
    assert output.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is read is not taken for one that is not, on a machine that keeps its reader."""
    monkeypatch.setattr(module, "_WRITE_WITHIN", 60.0)


@pytest.fixture(autouse=True)
def patient_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same at the end, and for the thread that reads."""
    for limit in ("_LAST_WRITE_WITHIN", "_DRAIN_WITHIN", "_CLOSE_WITHIN"):
        monkeypatch.setattr(module, limit, 60.0)


def lines_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["line"] for event in events if event["event"] == "output"]


def lost_of(events: list[dict[str, Any]]) -> int:
    return sum(event["lines"] for event in events if event["event"] == "output_lost")


def write_all(output: Output, data: bytes) -> None:
    while data:
        data = data[os.write(output._writing, data) :]


def test_each_line_is_an_event_and_the_end_is_kept() -> None:
    log = Log()
    with followed(log, most=6) as (output, _):
        write_all(output, b"one\ntwo\r\n\n\xffthree")
        output.drain()
        assert output.tail() == "three"
        output.clear()
        assert output.tail() == ""
    events = log.end()
    assert lines_of(events) == ["one", "two\r", "", "\ufffdthree"]
    assert {(it["job"], it["slot"]) for it in events} == {("x", SLOT)}


def test_a_character_that_comes_in_two_blocks_is_one() -> None:
    log = Log()
    with followed(log) as (output, _):
        for byte in "ü🙂\n".encode():
            write_all(output, bytes([byte]))
            eventually(lambda: not output._waiting)
    assert lines_of(log.end()) == ["ü🙂"]


@pytest.mark.usefixtures("patient")
def test_of_a_talkative_command_nothing_is_lost_while_somebody_reads() -> None:
    log = Log()
    log.read()
    with followed(log, most=4) as (output, _):
        write_all(output, b"y\n" * MANY)
        output.drain()
        eventually(lambda: not output._waiting and not output._ready, within=60)
    events = log.end()
    assert lines_of(events) == ["y"] * MANY
    assert lost_of(events) == 0


def test_a_reader_that_stands_still_delays_no_command_and_is_told_what_it_lost() -> None:
    log = Log()
    with followed(log) as (output, emit):
        number = 0
        for _ in range(40):
            # It would wait for ever here if anybody waited for the reader.
            write_all(output, b"".join(b"line %d\n" % (number + at) for at in range(20_000)))
            number += 20_000
            assert output._size <= module._WAITING + module._AT_ONCE
        emit("ok", slot=SLOT)
        log.read()
        eventually(lambda: not output._waiting and not output._ready, within=60)
        write_all(output, b"the last\n")
    events = log.end()
    lines = lines_of(events)
    assert lines[-1] == "the last"
    assert lost_of(events) > 0
    assert len(lines) - 1 + lost_of(events) == number
    assert all(line == f"line {line.split()[1]}" for line in lines[:-1]), "each line is whole"
    assert [it["event"] for it in events].count("ok") == 1


@pytest.mark.usefixtures("patient")
def test_an_event_comes_after_the_output_before_it_and_before_what_follows() -> None:
    log = Log()
    log.read()
    with followed(log) as (output, emit):
        write_all(output, b"a\n" * 10_000 + b"no end")
        output.drain()
        emit("retry", attempt=1)
        write_all(output, b"b\n")
    kinds = [event.get("line", event["event"]) for event in log.end()]
    assert kinds == [*["a"] * 10_000, "no end", "retry", "b"]


def test_an_event_and_a_close_while_the_thread_looks_at_what_waits_lose_nothing() -> None:
    log = Log()

    class Late(deque[Any]):
        def __bool__(self) -> bool:
            found = len(self) > 0
            if sys._getframe(1).f_code.co_name == "_run" and not found and output._close_by == inf:
                self.append((module._PieceKind.EVENT, b'{"event": "last"}\n'))
                output._close_by = clock.now() + 60.0
            return found

    with followed(log) as (output, _):
        output._waiting = Late()
        write_all(output, b"x\n")
        output.drain()
        eventually(lambda: output._close_by < inf)
    # Whether the line was read before the thread's first look is a matter of chance.
    assert sorted(event["event"] for event in log.end()) == ["last", "output"]


def test_without_a_reader_the_output_is_read_all_the_same() -> None:
    log = Log()
    os.close(log.reading)
    with followed(log, most=3) as (output, emit):
        write_all(output, b"x\n" * MANY + b"end")
        emit("ok")
        output.drain()
        assert output.tail() == "end"
    os.close(log.writing)


def test_a_pipe_that_no_process_has_any_more_says_nothing_more() -> None:
    log = Log()
    log.read()
    with followed(log) as (output, _):
        write_all(output, b"x\n")
        os.close(output._writing)
        output._writing = -1
        eventually(lambda: output._ended)
        eventually(lambda: not output._waiting and not output._ready)
        for _ in range(100):
            assert not output._waiting
    assert lines_of(log.end()) == ["x"]


@pytest.mark.usefixtures("patient")
def test_lines_of_several_writers_never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe takes so many bytes in one piece: each write is whole lines, and no more than that."""
    log, pieces = Log(), list[bytes]()
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if fd == log.writing:
            pieces.append(data)
        return real(fd, data)

    log.read()
    with followed(log) as (output, _):
        monkeypatch.setattr(os, "write", write)
        real(output._writing, b"short\n" * 3000 + b"\x01" * 5000 + b"\n" + bytes(range(256)) * 40)
        output.drain()
        eventually(lambda: not output._waiting and not output._ready)
        monkeypatch.undo()
    log.end()
    assert len(pieces) > 10
    assert all(len(piece) <= LONGEST_EVENT and piece.endswith(b"\n") for piece in pieces)
    assert len(pieces) < 3000, "many lines go in one piece"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("size", [1_000_000, 5_000_000])
def test_a_line_that_is_too_long_comes_in_pieces(size: int) -> None:
    log = Log()
    log.read()
    with followed(log) as (output, _):
        write_all(output, b"x" * size + b"\nnext")
        output.drain()
        eventually(lambda: not output._waiting and not output._ready, within=60)
    *pieces, last = lines_of(log.end())
    assert last == "next"
    assert "".join(pieces) == "x" * size
    assert max(map(len, pieces)) == module._LONGEST_LINE


# -- lines from blocks -----------------------------------------------------------------------------


def decoded(made: Iterator[bytes]) -> list[dict[str, Any]]:
    found = list(made)
    assert all(len(line) <= LONGEST_EVENT and line.endswith(b"\n") for line in found)
    assert all(line[:-1].decode().isprintable() for line in found)
    return [json.loads(line) for line in found]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40) | st.just(b"\n") | st.binary(min_size=3000, max_size=9000)))
def test_no_byte_is_lost_or_added_whatever_comes_in_whatever_blocks(blocks: list[bytes]) -> None:
    lines, events = _Lines(Events(), SLOT), list[dict[str, Any]]()
    for block in blocks:
        events += decoded(lines.events_of(block))
    events += decoded(lines.events_of(b"", ended=True))
    said = lines_of(events)
    text = b"".join(blocks).decode("utf-8", "replace")
    assert "".join(said) == text.replace("\n", "")
    if all(len(line) <= 500 for line in text.split("\n")):
        assert said == text.removesuffix("\n").split("\n")[: len(said)]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 90), st.booleans()), max_size=60),
    st.booleans(),
)
def test_a_line_is_whole_or_counted_as_lost(
    lengths: list[int], blocks: list[tuple[int, bool]], ended: bool
) -> None:
    """Wherever the blocks are cut, and whichever of them are dropped."""
    there = [f"{number}:" + "x" * length for number, length in enumerate(lengths)]
    data = "\n".join(there).encode() + b"\n" * ended
    lines, events = _Lines(Events(), SLOT), list[dict[str, Any]]()
    for size, lost in [*blocks, (len(data), False)]:
        block, data = data[:size], data[size:]
        if lost:
            lines.drop(block)
        else:
            events += decoded(lines.events_of(block))
    events += decoded(lines.events_of(b"", ended=True))
    said = lines_of(events)
    assert set(said) <= set(there)
    assert said == [line for line in there if line in said]
    assert len(said) + lost_of(events) == len(there)


def test_a_lost_line_without_an_end_is_not_waited_for() -> None:
    lines = _Lines(Events(), SLOT)
    lines.drop(b"\x00" * 5000)
    events = decoded(lines.events_of(b"y" * 10_000)) + decoded(lines.events_of(b"", ended=True))
    assert "".join(lines_of(events)) == "y" * (10_000 - module._LONGEST_LINE)


# -- what is shown while a command runs ------------------------------------------------------------


def test_the_tail_is_shown_when_it_is_another_and_again_if_it_could_not_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FIRST_SHOWN", 0.01)
    monkeypatch.setattr(module, "_SHOWN_EVERY", 0.01)
    tails, seen = deque(["", "a", "a", "a", "b", "b", "b"]), list[str]()

    def show(text: str) -> bool:
        seen.append(text)
        return len(seen) > 1

    with module.showing(lambda: tails.popleft() if len(tails) > 1 else tails[0], show):
        eventually(lambda: len(tails) == 1)
    assert seen == ["a", "a", "b"]


def test_a_store_that_hangs_keeps_no_run_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_SHOWN", 0.01)
    monkeypatch.setattr(module, "_SHOWN_WITHIN", 0.01)
    asked, go = threading.Event(), threading.Event()

    def show(_: str) -> bool:
        asked.set()
        return go.wait(60)

    with module.showing(lambda: "a", show):
        assert asked.wait(60)
    assert not go.is_set()
    go.set()
    eventually(lambda: "incumbent-tail" not in {one.name for one in threading.enumerate()})


def test_a_run_is_shown_twelve_times_a_minute_at_most() -> None:
    assert module._SHOWN_EVERY >= 5


def test_a_run_goes_on_if_no_thread_is_to_be_had_for_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran = []
    monkeypatch.setattr(threading.Thread, "start", start)
    with module.showing(lambda: "some", lambda _: True):
        ran.append("the command")
    assert ran

"""What a command writes, on its way to the log.

    CMD and its children --> a pipe --> what waits --> lines --> our standard output
                                |                        ^
                         the tail, for the ledger    events of the run

A thread of its own does all of it, so that nobody waits for a log: neither the supervision of the
command nor its lease, nor the command, whose pipe is read in blocks and before anything is written.

1. At most _WAITING bytes wait. Beyond that the command waits, for as long as our standard output
   takes what we write: lines cost a microsecond each, and nothing is lost. If it takes nothing for
   _WRITE_WITHIN in all, the waiting lines are dropped, and an event `output_lost` counts them:
   until it has caught up, a reader that is too slow loses lines and delays nobody.
2. Events of the run wait in the same line, so that none overtakes the output before it. They are
   not dropped.
3. While the command runs, its tail is shown to people now and then (`showing`).
4. `drain`: the command has ended, so everything it wrote is read, and the tail is whole. The lines
   are written later, when the lease is given back: `close` waits for that while the reader reads.
"""

from __future__ import annotations

import codecs
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from math import inf
from typing import Final

from incumbent import clock
from incumbent.cron.events import LONGEST_EVENT, Events
from incumbent.interrupts import raise_if_from_signal

# As much as a pipe holds.
_AT_ONCE: Final = 65_536
_WAITING: Final = 1 << 20
# Bytes that are made into events at once: lines of one letter become a hundred times as many.
_ENCODED_AT_ONCE: Final = 8192
_WRITTEN_AT_ONCE: Final = 64
# Characters; a longer line is passed on in pieces.
_LONGEST_LINE: Final = 2048
# Blocks that are read after the end: what outlived the command may write for ever.
_TURNS_TO_SETTLE: Final = 16
# Seconds: a reader that keeps up is not always there at once.
_WRITE_WITHIN: Final = 0.25
# The end of a run goes on record after this: a log that hangs delays it by no more.
_DRAIN_WITHIN: Final = 5.0
_CLOSE_WITHIN: Final = 15.0
# Seconds: a reader that takes nothing for so long at the end is given up.
_LAST_WRITE_WITHIN: Final = 0.5


# Seconds until the tail is shown: at most 12 times a minute.
_FIRST_SHOWN, _SHOWN_EVERY = 2.0, 5.0
# A little longer than a request to the ledger may take.
_SHOWN_WITHIN: Final = 2.5


class _PieceKind(Enum):
    OUTPUT = "what the command wrote"
    END = "the end of an attempt: a last line without its end is a line"
    EVENT = "a line that is ready to be written"


class Output:
    """The standard output and error of one task's commands.

    `out`: the descriptor to which lines are written.
    """

    def __init__(self, out: int) -> None:
        self._out = out
        self._fd, self._writing = os.pipe()
        self._woken, self._waker = os.pipe()
        for fd in (self._fd, self._woken, self._waker):
            os.set_blocking(fd, False)
        self._thread: threading.Thread | None = None
        self._most = 0
        self._tail = b""
        self._ended = False
        """Whether every process has closed the pipe."""
        self._drained = threading.Event()
        self._draining = False
        self._close_by = inf
        self._mutex = threading.Lock()
        self._waiting: deque[tuple[_PieceKind, bytes]] = deque()
        self._size = 0
        """Bytes of the output that waits."""
        self._time_left = _WRITE_WITHIN
        self._ready: deque[bytes] = deque()
        """Lines that are written next, each piece as large as a pipe takes at once."""

    def become_stdout(self) -> None:
        """Redirect the output of this process and its children to this pipe."""
        for fd in (1, 2):
            os.dup2(self._writing, fd)
        os.close(self._writing)
        self._writing = -1

    def pass_on(self, most: int, events: Events, slot: str) -> None:
        """Pass on what this slot's command writes from now on; `most`: bytes of its end to keep."""
        self._most, self._events, self._lines = most, events, _Lines(events, slot)
        self._thread = threading.Thread(target=self._run, name="incumbent-output", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> bool:
        """Write an event's line after the output that came before it. Never blocks."""
        with self._mutex:
            self._waiting.append((_PieceKind.EVENT, line))
        self._wake()
        return True

    def drain(self) -> None:
        """Read the rest, once the command has ended."""
        # Cleared first: the thread may be done before we wait.
        self._drained.clear()
        self._draining = True
        self._wake()
        self._drained.wait(_DRAIN_WITHIN)

    def tail(self) -> str:
        """The end of the output; bytes that are not UTF-8 are replaced."""
        return self._tail.decode("utf-8", "replace").strip("\n\ufffd")

    def clear(self) -> None:
        """Drop the tail kept so far: another attempt begins."""
        self._tail = b""

    def close(self) -> bool:
        """Write what waits, and close the pipe; False if the thread hangs in a write for ever."""
        if self._thread is not None:
            self._close_by = clock.now() + _CLOSE_WITHIN
            self._wake()
            # Longer than the thread takes by its own clock: only a write that hangs is left then.
            self._thread.join(2 * _CLOSE_WITHIN)
            if self._thread.is_alive():
                return False
            self._drop()
            self._events.count_dropped(
                sum(piece.count(b"\n") for piece in self._ready) + self._lines.lost
            )
        for fd in (self._fd, self._writing, self._woken, self._waker):
            if fd >= 0:
                os.close(fd)
        return True

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._waker, b"\0")

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while clock.now() < self._close_by:
            # In this order: the last event is put before the close, and may come in between.
            closing, pending = self._close_by < inf, bool(self._ready or self._waiting)
            if closing and not (pending and self._takes_a_line(_LAST_WRITE_WITHIN)):
                return
            if self._size >= _WAITING:
                self._write_or_drop()
            else:
                self._turn(pending)

    def _turn(self, pending: bool) -> None:
        if not pending:
            self._time_left = _WRITE_WITHIN
        poll = select.poll()
        # An ended pipe stays readable, and would wake every poll.
        for fd in (self._woken,) if self._ended else (self._woken, self._fd):
            poll.register(fd, select.POLLIN)
        if pending:
            poll.register(self._out, select.POLLOUT)
        fds = {fd for fd, _ in poll.poll()}
        if self._woken in fds:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
        # Read before it is written: the tail is waited for, and a slow reader must not delay it.
        if self._draining:
            self._read_to_the_end()
        elif self._fd in fds:
            self._read()
        if self._out in fds:
            self._write()

    def _write_or_drop(self) -> None:
        began = clock.now()
        takes = self._takes_a_line(self._time_left)
        self._time_left = max(0.0, self._time_left - (clock.now() - began))
        if takes:
            self._write()
        else:
            self._drop()

    def _takes_a_line(self, within: float = 0.0) -> bool:
        poll = select.poll()
        poll.register(self._out, select.POLLOUT)
        return bool(poll.poll(within * 1000))

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, _AT_ONCE)
        except BlockingIOError:
            return False
        if not data:
            self._ended = True
            return False
        if self._most:
            # One assignment: another thread that shows the tail reads the old one or the new one.
            self._tail = (self._tail + data)[-self._most :]
        with self._mutex:
            self._waiting.append((_PieceKind.OUTPUT, data))
            self._size += len(data)
        return True

    def _read_to_the_end(self) -> None:
        for _ in range(_TURNS_TO_SETTLE):
            if not self._read():
                break
        with self._mutex:
            self._waiting.append((_PieceKind.END, b""))
        # Before the event is set: who waited for it may begin another drain at once.
        self._draining = False
        self._drained.set()

    def _drop(self) -> None:
        with self._mutex:
            kept: deque[tuple[_PieceKind, bytes]] = deque()
            for kind, data in self._waiting:
                if kind is _PieceKind.OUTPUT:
                    self._lines.drop(data)
                else:
                    kept.append((kind, data))
            self._waiting, self._size = kept, 0

    def _write(self) -> None:
        """Write what our standard output takes now, up to a limit: then it is time to read."""
        for _ in range(_WRITTEN_AT_ONCE):
            if not self._ready:
                self._make_lines()
            # poll() says that a piece of PIPE_BUF fits; `_in_pieces` makes none larger, so no write
            # blocks.
            if not self._ready or not self._takes_a_line():
                return
            # Nobody reads it: there is nowhere to write, and nobody to tell.
            with suppress(OSError):
                os.write(self._out, self._ready.popleft())

    def _make_lines(self) -> None:
        with self._mutex:
            if not self._waiting:
                return
            kind, data = self._waiting.popleft()
            if kind is _PieceKind.OUTPUT:
                if rest := data[_ENCODED_AT_ONCE:]:
                    self._waiting.appendleft((kind, rest))
                data = data[:_ENCODED_AT_ONCE]
                self._size -= len(data)
        if kind is _PieceKind.EVENT:
            self._ready.append(data)
        else:
            self._ready += _in_pieces(self._lines.events_of(data, ended=kind is _PieceKind.END))


@contextmanager
def showing(tail: Callable[[], str], show: Callable[[str], bool]) -> Iterator[None]:
    """Until the block ends, `show` the tail every few seconds if it is another; see Ledger.show.

    In a thread of its own: nobody waits for a store but the end of the block, for one request.
    """
    over = threading.Event()

    def run() -> None:
        last, pause = "", _FIRST_SHOWN
        while not over.wait(pause):
            pause = _SHOWN_EVERY
            if (now := tail()) and now != last and show(now):
                last = now

    thread = threading.Thread(target=run, name="incumbent-tail", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise_if_from_signal(error)
        # No thread is to be had: the run goes on, and its output is seen at its end.
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join(_SHOWN_WITHIN)


class _Lines:
    """Makes the lines of `output` events from blocks of bytes."""

    def __init__(self, events: Events, slot: str) -> None:
        self._events = events
        self._slot = slot
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""
        """The beginning of a line whose end has not come yet."""
        self.lost = 0
        """Lines that were dropped, and that no event has counted yet."""
        self._to_skip = 0
        """Bytes, up to the end of their line, that belong to a line that is lost."""

    def events_of(self, data: bytes, *, ended: bool = False) -> Iterator[bytes]:
        """Yield the events of these bytes; `ended`: no more will come."""
        if self._to_skip:
            data = self._skip_lost_line(data, ended=ended)
        if self.lost and (data or ended):
            yield self._events.line("output_lost", slot=self._slot, lines=self.lost)
            self.lost = 0
        *lines, self._line = (self._line + self._decoder.decode(data, ended)).split("\n")
        if len(self._line) > _LONGEST_LINE or (ended and self._line):
            lines.append(self._line)
            self._line = ""
        yield from self._events.lines("output", "line", _cut(lines), slot=self._slot)

    def drop(self, data: bytes) -> None:
        """Drop these bytes, and what there is of the lines around them."""
        if data:
            self.lost += data.count(b"\n")
            self._line, self._to_skip = "", 0 if data.endswith(b"\n") else _LONGEST_LINE
            self._decoder.reset()

    def _skip_lost_line(self, data: bytes, *, ended: bool) -> bytes:
        _, found, rest = data.partition(b"\n")
        if not (found or ended):
            # A line beyond the limit is passed on in pieces: the next piece may follow.
            rest, self._to_skip = data[self._to_skip :], max(0, self._to_skip - len(data))
        if found or ended or not self._to_skip:
            self.lost, self._to_skip = self.lost + 1, 0
        return rest


def _cut(lines: Iterable[str]) -> Iterator[str]:
    """Cut what is longer than a line may be."""
    for line in lines:
        if len(line) <= _LONGEST_LINE:
            yield line
        else:
            for at in range(0, len(line), _LONGEST_LINE):
                yield line[at : at + _LONGEST_LINE]


def _in_pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join whole lines, as many as a pipe takes at once."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        if size + len(line) > LONGEST_EVENT:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield b"".join(piece)

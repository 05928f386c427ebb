"""The two columns of a row, each run as an instance of its own would: in a thread, or a process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from tests.coming_from import execute
from tests.coming_from.pages import Row

T = TypeVar("T")
WITHIN = 30.0
NOT_RUN = "not run"
_numbers = count(1)


class Side(Protocol):
    """Where the code of one column runs."""

    def run(self, code: str) -> str:
        """What came of it; see `execute`."""

    def start(self, code: str) -> Future[str]:
        """Run it, and do not wait for its end."""

    def close(self) -> None:
        """Give back what is held."""


class Thread:
    """Runs what it is given, one after the other. A call that hangs holds up no test run."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def _serve(self) -> None:
        while True:
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  # whoever waits for it gets it
                future.set_exception(error)


class Here:
    """A thread of this process: locks tell threads apart."""

    def __init__(self) -> None:
        self._thread = Thread()
        self.names: dict[str, Any] = {"body": lambda: "ran"}

    def start(self, code: str) -> Future[str]:
        if code.startswith("incumbent "):
            return self._thread.submit(partial(_exit_code, code))
        return self._thread.submit(partial(execute.execute, code, self.names))

    def run(self, code: str) -> str:
        return self.start(code).result(WITHIN)

    def close(self) -> None:
        self._thread.submit(partial(execute.finish, self.names)).result(WITHIN)


def _exit_code(command: str) -> str:
    program = [sys.executable, "-m", *command.split()]
    return str(subprocess.run(program, capture_output=True, check=False).returncode)


class There:
    """A process of another environment."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [python, execute.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._thread = Thread()

    def start(self, code: str) -> Future[str]:
        return self._thread.submit(partial(self._ask, code))

    def _ask(self, code: str) -> str:
        asks, answers = self._process.stdin, self._process.stdout
        assert asks is not None
        assert answers is not None
        asks.write(json.dumps(code) + "\n")
        asks.flush()
        return str(json.loads(answers.readline()))

    def run(self, code: str) -> str:
        return self.start(code).result(WITHIN)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Told:
    """A column that is not run: its language is another one."""

    def start(self, code: str) -> Future[str]:
        future: Future[str] = Future()
        future.set_result(NOT_RUN)
        return future

    def run(self, code: str) -> str:
        return NOT_RUN

    def close(self) -> None:
        pass


class Outcome(NamedTuple):
    theirs: str
    ours: str


class Both:
    """Their call and ours, of one name, which is `job` on the page."""

    def __init__(
        self, row: Row, make: Callable[[], tuple[Side, Side]], take: Outcome, give: str
    ) -> None:
        self.row, self._take, self._give = row, take, give
        self.name = f"job{next(_numbers)}"
        self._make = make
        self.theirs, self.ours = make()

    def prepare(self) -> None:
        """Run the first row of the section."""
        self.made = self.each(*self._first)
        assert "raises" not in " ".join(self.made), self.made

    @property
    def _first(self) -> Outcome:
        first = self.row.first or self.row
        return Outcome(first.theirs, first.ours)

    def run(self) -> Outcome:
        """The row."""
        return self.each(self.row.theirs, self.row.ours)

    def take(self) -> None:
        """Both hold it from now."""
        taken = self.each(*self._take)
        assert "raises" not in " ".join(taken), taken

    def each(self, theirs: str, ours: str) -> Outcome:
        """Another call on either side."""
        first, second = self.theirs.start(self.named(theirs)), self.ours.start(self.named(ours))
        return Outcome(first.result(WITHIN), second.result(WITHIN))

    def named(self, text: str) -> str:
        """The text with the name of this test."""
        return re.sub(r"\bjob\b", self.name, text)

    @contextmanager
    def held(self) -> Iterator[Both]:
        """Another instance of either side holds it."""
        other = copy(self)
        other.theirs, other.ours = self._make()
        try:
            other.each(*self._first)
            other.take()
            yield other
        finally:
            other.theirs.run(self.named(self._give))
            other.close()

    def close(self) -> None:
        self.theirs.close()
        self.ours.close()

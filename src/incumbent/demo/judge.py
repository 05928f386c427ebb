"""The judge: a separate process that trusts no contender and asks the kernel; and its verdict.

    python -m incumbent.demo.judge SOCKET

The judge is also the device that workers write to. It remembers the largest term of each side and
refuses a write with a smaller one. A plain loop has no term and sends 0, which is never refused.

The processes of a worker inherit its connection, so that the kernel closes it when the last of
them ends. Before a worker begins, the judge reads all that has arrived on other connections: a
worker that ended earlier is seen as ended, and a worker that is still connected is alive.

A message is one JSON object: `{"begin": {...}}`, `{"write": TERM, "side": SIDE}`, answered by
"taken" or "refused", and `{"accounts": SIDE}`, answered by the accounts of that side. A peer waits
for the answer before it sends again, so that the judge reads one message at a time.

The verdict follows from the accounts alone. Instants are those of time.monotonic.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass
class Account:
    """The judge's record of one worker, from its beginning until none of its processes lives."""

    number: int
    side: str
    who: str
    term: int
    began: float
    met: Sequence[int] = ()
    """The numbers of the workers of its side that were alive when it began."""
    first_write: float | None = None
    last_write: float | None = None
    ended: float | None = None

    @property
    def span(self) -> tuple[float, float] | None:
        """The instants of its first and its last write; None before the first."""
        if self.first_write is None or self.last_write is None:
            return None
        return self.first_write, self.last_write


def faults_in(accounts: Sequence[Account]) -> list[str]:
    """Every breach of "one at a time, and terms that only grow", in words; empty is good."""
    faults = [
        f"{account.who} began (term {account.term}) while another lived"
        for account in accounts
        if account.met
    ]
    for before, after in pairwise(sorted(accounts, key=lambda account: account.began)):
        if after.term <= before.term:
            faults.append(f"term {after.term} of {after.who} follows term {before.term}")
    return faults


def spans_shared(accounts: Iterable[Account]) -> list[tuple[float, float]]:
    """The spans, in order, in which two or more workers were between first and last write."""
    spans = [account.span for account in accounts if account.span is not None]
    edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    shared: list[tuple[float, float]] = []
    writing, since = 0, 0.0
    for at, change in edges:
        if writing >= 2 and at > since:
            shared.append((since, at))
        writing, since = writing + change, at
    return shared


def seconds_shared(accounts: Iterable[Account]) -> float:
    """The seconds in which at least two workers were between their first and last writes."""
    return sum(end - begin for begin, end in spans_shared(accounts))


# -- the process ---------------------------------------------------------------------------------


class _Judge:
    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        unseen = Path(f"{path}.new")
        self._listener.bind(str(unseen))
        self._listener.listen()
        # The stage waits for the path: a socket that does not listen yet would refuse it.
        unseen.rename(path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._open: set[socket.socket] = set()
        self._accounts: list[Account] = []
        self._account_of: dict[socket.socket, Account] = {}
        self._largest: dict[str, int] = {}

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    connection.setblocking(False)
                    self._open.add(connection)
                    self._selector.register(connection, selectors.EVENT_READ, connection)
                else:
                    self._read(key.data)

    def _read(self, connection: socket.socket) -> None:
        """Handle everything that has arrived on a connection, and its end."""
        while connection in self._open:
            try:
                message = connection.recv(65536)
            except BlockingIOError:
                return
            except ConnectionError:
                message = b""
            if not message:
                self._end(connection)
                return
            answer = json.dumps(self._handle(connection, json.loads(message)))
            with suppress(OSError):
                connection.sendall(answer.encode() + b"\n")

    def _handle(self, connection: socket.socket, message: dict[str, Any]) -> Any:
        if "begin" in message:
            return self._begin(connection, message["begin"])
        if "write" in message:
            return self._write(connection, message["side"], message["write"])
        return [asdict(each) for each in self._accounts if each.side == message["accounts"]]

    def _begin(self, connection: socket.socket, worker: dict[str, Any]) -> str:
        # What ended before this beginning must count as ended: see the module.
        for other in self._open - {connection}:
            self._read(other)
        alive = [each for each in self._account_of.values() if each.side == worker["side"]]
        met = [each.number for each in alive]
        account = Account(len(self._accounts), began=time.monotonic(), met=met, **worker)
        self._accounts.append(account)
        self._account_of[connection] = account
        return "begun"

    def _write(self, connection: socket.socket, side: str, term: int) -> str:
        largest = self._largest.get(side, 0)
        taken = term == 0 or term >= largest
        self._largest[side] = max(term, largest)
        if (account := self._account_of.get(connection)) is not None:
            account.last_write = time.monotonic()
            account.first_write = account.first_write or account.last_write
        return "taken" if taken else "refused"

    def _end(self, connection: socket.socket) -> None:
        self._open.remove(connection)
        self._selector.unregister(connection)
        connection.close()
        if (account := self._account_of.pop(connection, None)) is not None:
            account.ended = time.monotonic()


if __name__ == "__main__":
    _Judge(sys.argv[1]).serve()

"""Who was overtaken in a line on Redis, by the order in which the server was asked.

The instants at which clients began to ask are in another order: between its clock and its request
a process waits for a core, and many of them do when a machine has two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, NamedTuple

import redis

__all__ = ["Arrivals", "overtaken", "watch_arrivals"]

# A take says its claim alone, a release or a renewal its token too.
_TAKE = re.compile(r" incumbent\d+ ([0-9a-f]{32})  ")
_HELD = re.compile(r" incumbent\d+ ([0-9a-f]{32}) (\d+) ")


class Arrivals(NamedTuple):
    """The claims in the order of their first requests, and the token that each was granted."""

    order: dict[str, None]
    tokens: dict[str, int]

    def learn(self, command: str, at: float) -> None:
        """One command that the server was sent, and when it came to it (unix seconds)."""
        if take := _TAKE.search(command):
            until = command.rpartition(" ")[2]
            # A busy machine may send it so late that nobody waits for the answer: it has no place
            # in line. What has no such instant is the release of a claim in doubt.
            if until.isdigit() and at * 1e6 <= int(until):
                self.order.setdefault(take[1])
        elif held := _HELD.search(command):
            self.tokens[held[1]] = int(held[2])


def overtaken(arrivals: Arrivals) -> Mapping[str, int]:
    """How many came later than each claim and were granted before it."""
    found: dict[str, int] = {}
    granted = [it for it in arrivals.order if it in arrivals.tokens]
    for place, claim in enumerate(granted):
        own = arrivals.tokens[claim]
        found[claim] = sum(arrivals.tokens[later] < own for later in granted[place + 1 :])
    return found


@contextmanager
def watch_arrivals(port: int, name: str) -> Iterator[Arrivals]:
    """All that is asked for the name meanwhile; complete when the block is left."""
    arrivals, over = Arrivals({}, {}), Event()
    with redis.Redis(port=port, socket_timeout=None) as raw:
        monitor: Any = raw.monitor  # redis-py does not say what it returns
        with monitor() as said:

            def listen(commands: Iterable[dict[str, Any]]) -> None:
                for each in commands:
                    if each["command"] == f"ECHO {name}" and over.is_set():
                        return
                    if each["client_type"] != "lua" and name in each["command"]:
                        arrivals.learn(each["command"], each["time"])

            listener = Thread(target=listen, args=(said.listen(),), daemon=True)
            listener.start()
            yield arrivals
            over.set()
            raw.echo(name)
            listener.join(60)

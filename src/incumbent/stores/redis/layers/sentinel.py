"""What sentinels say of a master, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.hosts import Address, say_address
from incumbent.stores.redis.resp import Program, Step, pack

__all__ = ["FRESH", "SETTLE", "Opinion", "majority_of", "question", "say_master", "verdict"]

FRESH: Final = 1.0
"""Seconds for which an answer of the sentinels is taken for granted.

Shorter than any sensible `down-after-milliseconds`: who was cut off together with the old master
notices before the others can have promoted another.
"""
SETTLE: Final = 3.0
"""Seconds after a promotion within which every sentinel hears of it (each publishes every 2 s)."""


class Opinion(NamedTuple):
    """Where one sentinel sees the master. The opinion with the highest `epoch` is the newest."""

    epoch: int
    address: Address


def majority_of(sentinels: int) -> int:
    """How many have to answer."""
    return sentinels // 2 + 1


def question(service: str, where: str, *, proved: bool) -> Program[Opinion]:
    """Ask one sentinel. Raises StoreUnavailable where it knows no such master."""
    request = pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    address, about = yield Step(request + pack("SENTINEL", "MASTER", service), 2)
    for answer in (about, address):
        if isinstance(answer, Exception) and "No such master" not in str(answer):
            raise answered_error(str(answer), where, proved=proved)
    if not isinstance(address, list) or not isinstance(about, list):
        raise StoreUnavailable(
            f"{where} knows no master of the name {service!r}", permanent=not proved
        )
    return _opinion(address, about)


def _opinion(address: Sequence[Any], about: Sequence[Any]) -> Opinion:
    # The first answer is ahead of the second while the sentinel that leads a failover ends it.
    said = dict(zip(about[::2], about[1::2], strict=True))
    host, port = address
    return Opinion(int(said[b"config-epoch"]), (host.decode(), int(port)))


def verdict(answers: Sequence[Opinion | StoreError], asked: int, where: str) -> Address:
    """Where the master is, by the newest opinion of a majority; otherwise StoreUnavailable."""
    opinions = [each for each in answers if isinstance(each, Opinion)]
    if len(opinions) < majority_of(asked):
        raise _too_few(answers, len(opinions), asked, where)
    return max(opinions).address


def _too_few(
    answers: Sequence[Opinion | StoreError], said: int, asked: int, where: str
) -> StoreUnavailable:
    failures = [each for each in answers if isinstance(each, StoreError)]
    words = "; ".join(str(each) for each in failures[:3]) or "no answer in time"
    return StoreUnavailable(
        f"{where}: {said} of {asked} sentinels said where the master is, and"
        f" {majority_of(asked)} are needed: {words}",
        # Enough of them for good means that there can be no majority.
        permanent=sum(each.permanent for each in failures) > asked - majority_of(asked),
    )


def say_master(address: Address) -> str:
    """For the doctor."""
    return f"the sentinels say that the master is {say_address(address)}"

"""Processes that share a name and are killed at work: never too many of them are in there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent import clock
from tests import tiers
from tests.chaos.schedule import SHARES
from tests.e2e.sharer import TTL
from tests.history.checker import check
from tests.history.events import History, Witness
from tests.support.servers import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.crowd(tiers.MANY)

KINDS = {"permits": ["2"] * 5, "readers": ["read"] * 3 + ["write"] * 2}
PERMITS = {"read": 0, "write": None}


class Sharer:
    """One process, and what it says."""

    def __init__(self, url: str, kind: str, said: Path) -> None:
        self.permits = PERMITS.get(kind) if kind in PERMITS else int(kind)
        self.killed_at, self._said = 0.0, said
        command = [sys.executable, "-m", "tests.e2e.sharer", url, said.parent.name, kind]
        with said.open("w") as out:
            self._process = subprocess.Popen(command, stdout=out, cwd=ROOT)

    def kill(self) -> None:
        if not self.killed_at:
            self._process.kill()
            self._process.wait()
            self.killed_at = clock.now()

    def turns(self) -> int:
        return self._said.read_text().count("out")

    def is_at_work(self) -> bool:
        return self._said.read_text().rpartition("\n")[0].rpartition("\n")[2].startswith("in")

    def work(self) -> Iterator[Witness]:
        """Its turns; the last one ended when it was killed, at the latest."""
        began: dict[int, float] = {}
        for line in self._said.read_text().splitlines():
            what, token, at = line.split()
            if what == "in":
                began[int(token)] = float(at)
            else:
                yield self._witness(int(token), began.pop(int(token)), float(at))
        for last, since in began.items():
            yield self._witness(last, since, self.killed_at)

    def _witness(self, token: int, begin: float, until: float) -> Witness:
        return Witness(self._said.name, "job", token, begin, until, self.permits)


@pytest.mark.left(tiers.STORES, "redis-permits")
@pytest.mark.parametrize(
    ("every_store", "kind"),
    [(store, kind) for kind in KINDS for store in SHARES[kind]],
    indirect=["every_store"],
)
def test_who_is_killed_at_work_leaves_room_and_nobody_is_beside_too_many(
    every_store: str, kind: str, tmp_path: Path
) -> None:
    sharers = [Sharer(every_store, kind, tmp_path / f"{n}") for n, kind in enumerate(KINDS[kind])]
    try:
        eventually(lambda: all(one.turns() >= 5 for one in sharers))
        victims = [sharers[0], sharers[-1]]
        for victim in victims:
            eventually(victim.is_at_work)
            victim.kill()
        rest = [one for one in sharers if one not in victims]
        before = [one.turns() for one in rest]
        time.sleep(TTL)
        eventually(lambda: all(one.turns() >= n + 10 for one, n in zip(rest, before, strict=True)))
    finally:
        for one in sharers:
            one.kill()
    worked = [witness for one in sharers for witness in one.work()]
    assert check(History(list(worked))) == []
    assert len(check(History([_alone(witness) for witness in worked]))) > 0, "none were at once"


def _alone(witness: Witness) -> Witness:
    return Witness(witness.who, "job", witness.token, witness.begin, witness.until)

"""The table that the simulator votes with answers as the scripts do on a real server."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from incumbent.stores.quorum.scripts import SCRIPTS
from tests.quorum.node import (
    DAY,
    MINUTE,
    SECOND,
    Found,
    Give,
    Look,
    Node,
    Plant,
    Renew,
    Revoke,
    Take,
)
from tests.quorum.walls import ShiftedServer
from tests.support.needs import needs

pytestmark = [
    pytest.mark.server,
    needs(shutil.which("cc") is not None, "a C compiler: the clock is a preloaded library"),
]

STEPS = 4000
START = 1_800_000_000 * SECOND
LEASE, FLOOR, MARKER = "incumbent:{n/k}", "incumbent:{n/k}:b", "incumbent:quorum"
PAST, SWITCHES = "incumbent:{n/k}:h", "incumbent:{n/k}:r"


class RealNode:
    """The scripts on a server whose clock stands where the test puts it."""

    def __init__(self, server: ShiftedServer) -> None:
        self._client = redis.Redis(port=server.port, decode_responses=True)
        self._scripts = {name: script.text.decode() for name, script in SCRIPTS.items()}

    def wipe(self) -> None:
        self._client.flushall()

    def handle(self, request: Any) -> Any:
        return getattr(self, f"_{type(request).__name__.lower()}")(request)

    def _run(self, name: str, keys: tuple[str, ...], *arguments: Any) -> Any:
        return self._client.eval(self._scripts[name], len(keys), *keys, *arguments)

    def _look(self, _: Look) -> Any:
        seconds, micros = self._client.time()
        marker: Any = self._client.get(MARKER)
        return seconds * SECOND + micros, None if marker is None else _marker(marker)

    def _found(self, ask: Found) -> Any:
        return self._run("found", (MARKER,), f"incumbent1 {ask.members} {ask.born}", ask.deadline)

    def _take(self, ask: Take) -> Any:
        said = self._run(
            "take",
            (LEASE, FLOOR, MARKER, PAST, SWITCHES),
            *(f"incumbent1 {ask.claim} ", ask.ballot, f" {ask.ttl // 1000} host "),
            *(ask.ttl // 1000, ask.keep // 1000, f"incumbent1 {ask.members} 0"),
            *(ask.quarantine // 1000, " host", "+" if ask.raising else "-"),
        )
        if isinstance(said, str):
            return ("vote", _ballot(said, ask.claim))
        if len(said) == 2:
            return ("again", _ballot(said[0], ask.claim))
        kind, value, left, now, floor = said
        if kind == "members":
            return ("members", _marker(value))
        if kind == "young":
            return ("young", left)
        floor = int(floor) if floor else None
        if kind == "held":
            _, claim, ballot = value.split(" ")[:3]
            return ("held", (claim, int(ballot)), int(now), floor)
        return (kind, int(now), floor)

    def _renew(self, ask: Renew) -> Any:
        wait = "-" if ask.quarantine is None else ask.quarantine // 1000
        head, members = f"incumbent1 {ask.claim} {ask.ballot} ", f"incumbent1 {ask.members} "
        keys = (MARKER, LEASE, FLOOR, SWITCHES)
        said = self._run("renew", keys, "echo", members, wait, head, ask.ttl // 1000, "-")
        if said[0] == "members":
            return ("members", _marker(said[1]))
        assert said[0] == "echo"
        answer = said[1]
        if answer in (0, 1):
            return (("gone",), ("renewed",))[answer]
        return ("free", int(answer[1:]) if answer[1:] else None)

    def _plant(self, ask: Plant) -> Any:
        value = f"incumbent1 {ask.claim} {ask.ballot} 0 1 {ask.ttl // 1000} host "
        return self._run(
            "plant",
            (LEASE, FLOOR, MARKER),
            *(value, ask.ttl // 1000, ask.keep // 1000, f"incumbent1 {ask.members} "),
            *(ask.quarantine // 1000, "" if ask.floor is None else ask.floor),
        )

    def _revoke(self, ask: Revoke) -> Any:
        return self._run("revoke", (LEASE, FLOOR), f"incumbent1 {ask.claim} ", ask.ballot)

    def _give(self, ask: Give) -> Any:
        head = f"incumbent1 {ask.claim} {ask.ballot} "
        return self._run("give", (LEASE, FLOOR), head, f" {ask.ballot}")


def _marker(text: str) -> tuple[str, int]:
    _, members, born = text.split(" ")
    return members, int(born)


def _ballot(text: str, claim: str) -> int:
    word, whose, ballot = text.split(" ")
    assert (word, whose) == ("incumbent1", claim)
    return int(ballot)


class Dice:
    """Draws the next step so that old steps are met again."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._known = [("a", START)]

    def request(self, now: int) -> Any:
        draws = (self._take, self._take, self._take, self._renew, self._plant, self._other)
        return self.random.choice(draws)(now)

    def _take(self, now: int) -> Take:
        claim, ttl, members, young, keep = self._common()
        ballot = self._ballot(now)
        self._known = [*self._known[-5:], (claim, ballot)]
        return Take(claim, ballot, ttl, members, young, self.random.random() < 0.5, keep)

    def _renew(self, _: int) -> Renew:
        ttl, members, young = self._common()[1:4]
        return Renew(*self._again(), ttl, members, self.random.choice((None, young)))

    def _plant(self, _: int) -> Plant:
        ttl, members, young, keep = self._common()[1:]
        floor = self.random.choice((None, *(ballot for _, ballot in self._known)))
        return Plant(*self._again(), ttl, members, young, floor, keep)

    def _other(self, now: int) -> Any:
        members = self._common()[2]
        deadline = now + self.random.choice((-SECOND, SECOND))
        found = Found(members, self.random.choice((0, now)), deadline)
        return self.random.choice((Revoke(*self._again()), Give(*self._again()), Look(), found))

    def _common(self) -> tuple[str, int, str, int, int]:
        dice = self.random
        claim, members = dice.choice("abc"), dice.choice(("m",) * 9 + ("other",))
        ttl, young = dice.choice((1, 2, 5)) * SECOND, dice.choice((0, 0, 0, 2)) * SECOND
        return claim, ttl, members, young, dice.choice((10 * SECOND, DAY))

    def _ballot(self, now: int) -> int:
        off = self.random.choice((0, 0, 1, -30 * SECOND, -70 * SECOND, 50 * SECOND, 70 * SECOND))
        near = self._again()[1] + self.random.choice((-1, 0, 1, 1, SECOND // 2, 2 * SECOND))
        return self.random.choice((now + off, near, near))

    def _again(self) -> tuple[str, int]:
        return self.random.choice(self._known[-3:])


@pytest.fixture(scope="module")
def server() -> Iterator[ShiftedServer]:
    with ShiftedServer() as one:
        yield one


@pytest.mark.parametrize("part", range(2))
def test_the_table_answers_as_the_scripts_do(server: ShiftedServer, part: int) -> None:
    seed = random.SystemRandom().randrange(10**9)
    dice, real, node, now = Dice(seed), RealNode(server), Node(), START
    server.stop_wall(now)
    real.wipe()
    seen: set[str] = set()
    for step in range(STEPS // 2):
        now += dice.random.choice((0, 1, 700, 900_000, 1_700_000)) + dice.random.randrange(1000)
        if dice.random.random() < 0.002:
            now += dice.random.choice((MINUTE, DAY))
        if dice.random.random() < 0.01:
            node = Node()
            real.wipe()
        server.stop_wall(now)
        request = dice.request(now)
        ours, theirs = in_milliseconds(node.handle(request, now)), real.handle(request)
        assert theirs == ours, f"seed {seed}, part {part}, step {step}, at {now}: {request}"
        seen.add(f"{type(request).__name__} {theirs[0] if isinstance(theirs, tuple) else theirs}")
    assert {"Take vote", "Take again", "Take low", "Take high", "Take held", "Take young"} <= seen
    assert {"Renew renewed", "Renew free", "Plant 1", "Plant 0", "Revoke 1", "Give 1"} <= seen


def in_milliseconds(answer: Any) -> Any:
    """How long a young node will not vote is said in milliseconds, rounded up."""
    if isinstance(answer, tuple) and answer[0] == "young":
        return ("young", -(-answer[1] // 1000))
    return answer

"""The table that the simulator votes with answers as the scripts do on a real server."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis

from incumbent.stores.quorum.dialect import SCRIPTS
from tests.quorum.node import (
    DAY,
    MINUTE,
    SECOND,
    Accept,
    Found,
    Give,
    Look,
    Marker,
    Node,
    Plant,
    Promise,
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

STEPS = 8000
SHOWN = {
    *("Take vote", "Take again", "Take low", "Take high", "Take held", "Take young"),
    *("Promise promised", "Promise low", "Accept 1", "Accept 0"),
    *("Renew renewed", "Renew free", "Plant 1", "Plant 0", "Revoke 1", "Give 1"),
}
"""Answers that the requests of a test have to bring about; a rare one may take more steps."""
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
        return self._run("found", (MARKER,), _founded(ask), ask.deadline)

    def _take(self, ask: Take) -> Any:
        said = self._run(
            "take",
            (LEASE, FLOOR, MARKER, PAST, SWITCHES),
            *(f"incumbent1 {ask.claim} ", ask.ballot, f" {ask.ttl // 1000} host "),
            *(ask.ttl // 1000, ask.keep // 1000, _founded(ask)),
            *(_quarantine(ask), " host", "+" if ask.raising else "-"),
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
        head, members = f"incumbent1 {ask.claim} {ask.ballot} ", f"incumbent1 {ask.members} "
        keys, longest = (MARKER, LEASE, FLOOR, SWITCHES), ask.longest // 1000
        about = ("echo", members, _quarantine(ask), longest)
        said = self._run("renew", keys, *about, head, ask.ttl // 1000, "-")
        if said[0] == "members":
            return ("members", _marker(said[1]))
        assert said[0] == "echo"
        answer = said[1]
        if answer in (0, 1):
            return (("gone",), ("renewed",))[answer]
        return ("free", int(answer[1:]) if answer[1:] else None)

    def _promise(self, ask: Promise) -> Any:
        members, longest = f"incumbent1 {ask.members} ", ask.longest // 1000
        about = (ask.ballot, members, longest, ask.entry, _held(ask.held))
        said = self._run("promise", (SWITCHES, MARKER, LEASE), *about)
        if said[0] == "members":
            return ("members", _marker(said[1]))
        if said[0] == "high":
            return ("high", int(said[1]))
        if said[0] == "low":
            return ("low", int(said[1]), _told(said[2]))
        states, value, holds = said
        return ("promised", _told(states), value or None, holds)

    def _accept(self, ask: Accept) -> Any:
        state = "=" if ask.state is None else ask.state
        value = "-" if ask.value is None else f"={ask.value}"
        about = (ask.ballot, f"incumbent1 {ask.members} ", state, _held(ask.held), ask.entry, value)
        entries = [part for pair in ask.entries for part in pair]
        entries += ["s", " ".join(map(str, ask.states))] if ask.states else []
        keys = (SWITCHES, MARKER, LEASE, FLOOR)
        return self._run("accept", keys, *about, ask.keep // 1000, *entries)

    def _plant(self, ask: Plant) -> Any:
        value = f"incumbent1 {ask.claim} {ask.ballot} 0 1 {ask.ttl // 1000} host "
        return self._run(
            "plant",
            (LEASE, FLOOR, MARKER),
            *(value, ask.ttl // 1000, ask.keep // 1000, f"incumbent1 {ask.members} "),
            *(_quarantine(ask), "" if ask.floor is None else ask.floor),
        )

    def _revoke(self, ask: Revoke) -> Any:
        ended = (ask.ballot,) if ask.was_held else ()
        return self._run("revoke", (LEASE, FLOOR), f"incumbent1 {ask.claim} ", ask.ballot, *ended)

    def _give(self, ask: Give) -> Any:
        head = f"incumbent1 {ask.claim} {ask.ballot} "
        return self._run("give", (LEASE, FLOOR), head, f" {ask.ballot}")


def _founded(ask: Take | Found) -> str:
    return f"incumbent1 {ask.members} 0 {ask.longest // 1000}"


def _quarantine(ask: Take | Renew | Plant) -> int | str:
    return "-" if ask.quarantine is None else ask.quarantine // 1000


def _told(states: str) -> tuple[int, ...]:
    return (-1,) if states == "-" else tuple(map(int, states.split()))


def _held(held: tuple[str, int] | None) -> str:
    return "" if held is None else f"incumbent1 {held[0]} {held[1]} "


def _marker(text: str) -> Marker:
    _, members, born, longest = text.split(" ")
    return members, int(born), int(longest) * 1000


def _ballot(text: str, claim: str) -> int:
    word, whose, ballot = text.split(" ")
    assert (word, whose) == ("incumbent1", claim)
    return int(ballot)


class Dice:
    """Draws the next step so that old steps are met again."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._known = [("a", START)]
        self._promised, self._accepted = START, 0

    def request(self, now: int) -> Any:
        draws = (
            *(self._take, self._take, self._take, self._renew, self._plant, self._other),
            *(self._promise, self._accept, self._accept),
        )
        return self.random.choice(draws)(now)

    def _take(self, now: int) -> Take:
        claim, ttl, members, young, keep = self._common()
        ballot = self._ballot(now)
        self._known = [*self._known[-5:], (claim, ballot)]
        return Take(
            claim, ballot, ttl, members, young, self.random.random() < 0.5, keep, self._longest()
        )

    def _renew(self, _: int) -> Renew:
        ttl, members, young = self._common()[1:4]
        return Renew(*self._again(), ttl, members, young, self._longest())

    def _plant(self, _: int) -> Plant:
        ttl, members, young, keep = self._common()[1:]
        floor = self.random.choice((None, *(ballot for _, ballot in self._known)))
        return Plant(*self._again(), ttl, members, young, floor, keep)

    def _promise(self, now: int) -> Promise:
        ballot = self._ballot(now)
        self._promised = ballot
        return Promise(ballot, self._common()[2], self._entry(), self._held(), self._longest())

    def _accept(self, now: int) -> Accept:
        dice = self.random
        ballot = self._promised if dice.random() < 0.8 else self._ballot(now)
        state = dice.choice((0, self._accepted, self._accepted, self._accepted, None))
        entry = dice.choice(("", self._entry()))
        value = None if not entry or dice.random() < 0.3 else self._value(now)
        pairs = (("f:old", "1 x"), ("u:old", self._value(now))) if state is None else ()
        states = (self._accepted, 7) if state is None and self._accepted else ()
        self._accepted = ballot
        keep = dice.choice((10, 20)) * DAY
        members = self._common()[2]
        return Accept(ballot, members, state, entry, value, self._held(), pairs, states, keep)

    def _entry(self) -> str:
        return self.random.choice(("f:one", "f:two", "u:one", "u:two"))

    def _value(self, now: int) -> str:
        return f"{now // 1000 + self.random.choice((-130_000, -60_000, 60_000))} more"

    def _held(self) -> tuple[str, int] | None:
        return self.random.choice((None, None, None, self._again()))

    def _other(self, now: int) -> Any:
        members = self._common()[2]
        deadline = now + self.random.choice((-SECOND, SECOND))
        found = Found(members, deadline, self._longest())
        give, revoke = Give(*self._again()), Revoke(*self._again(), self.random.random() < 0.5)
        return self.random.choice((revoke, give, give, Look(), found))

    def _longest(self) -> int:
        return self.random.choice((1,) * 9 + (3,)) * SECOND

    def _common(self) -> tuple[str, int, str, int | None, int]:
        dice = self.random
        claim, members = dice.choice("abc"), dice.choice(("m",) * 9 + ("other",))
        ttl, young = dice.choice((1, 2, 5)) * SECOND, dice.choice((0, 0, 0, 2 * SECOND, None))
        return claim, ttl, members, young, dice.choice((10 * SECOND, DAY))

    def _ballot(self, now: int) -> int:
        off = self.random.choice(
            (0, 0, 1, -30 * SECOND, -70 * SECOND, 50 * SECOND, 70 * SECOND, 130 * SECOND)
        )
        near = self._again()[1] + self.random.choice((-1, 0, 1, 1, 900, SECOND // 2, 2 * SECOND))
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
    for step in count():
        if step >= STEPS // 2 and seen >= SHOWN:
            break
        assert step < 5 * STEPS, f"seed {seed}, part {part}: never {SHOWN - seen}"
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


def in_milliseconds(answer: Any) -> Any:
    """How long a young node will not vote is said in milliseconds, rounded up."""
    if isinstance(answer, tuple) and answer[0] == "young":
        return ("young", -(-answer[1] // 1000))
    return answer

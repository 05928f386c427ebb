"""What the store packs for a node's scripts, told to the table of `node.py`, and its answers back.

So the very bytes that would go over the wire decide in the simulator too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hiredis

from incumbent.stores.quorum.dialect import MARKER, SCRIPTS
from tests.quorum.node import (
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

_NAMES: Final = {script.sha: name for name, script in SCRIPTS.items()}


def serve(node: Node, payload: bytes, now: int) -> list[Any]:
    """The answers of one node at `now` (microseconds of its clock) to all requests of a payload."""
    reader = hiredis.Reader()
    reader.feed(payload)
    answers = []
    while (command := reader.gets()) is not False:
        answers.append(_answer(node, command, now))
    return answers


def _answer(node: Node, command: list[bytes], now: int) -> Any:
    if command[0] == b"GET":
        return _kept(node, command[1], now)
    if command[0] in (b"HMGET", b"HGETALL"):
        return _beside(node, command, now)
    if command[0] != b"EVALSHA":
        raise NotImplementedError(f"the table has no {command[0]!r}")
    keys = int(command[2])
    arguments = [part.decode() for part in command[3 + keys :]]
    return _SCRIPTS[_NAMES[command[1]]](node, arguments, now)


def _kept(node: Node, key: bytes, now: int) -> bytes | None:
    if key == MARKER.encode():
        return marker_of(node)
    lease = node.data.lease
    return None if lease is None or now // 1000 > lease.expires else _value(lease.value)


def _beside(node: Node, command: list[bytes], now: int) -> list[bytes | None]:
    node.handle(Look(), now)
    kept = node.data.beside
    found = {name.encode(): value.encode() for name, value in kept.entries}
    found |= {b"p": b"%d" % kept.promised} if kept.promised else {}
    found |= {b"s": _states(kept.states)} if kept.states else {}
    if command[0] == b"HMGET":
        return [found.get(name) for name in command[2:]]
    return [part for pair in found.items() for part in pair]


def _states(states: tuple[int, ...]) -> bytes:
    return b" ".join(b"%d" % it for it in states)


def _told(states: tuple[int, ...]) -> bytes:
    return b"-" if states[0] < 0 else _states(states)


def _promise(node: Node, said: list[str], now: int) -> Any:
    ballot, members, longest, entry, held = said
    ask = Promise(int(ballot), members.split()[1], entry, _claim_of(held), _us(longest))
    answer = node.handle(ask, now)
    if answer[0] == "members":
        return [b"members", _marker(answer[1])]
    if answer[0] == "high":
        return [b"high", str(answer[1]).encode()]
    if answer[0] == "low":
        return [b"low", str(answer[1]).encode(), _told(answer[2])]
    _, states, value, holds = answer
    return [_told(states), b"" if value is None else value.encode(), holds]


def _accept(node: Node, said: list[str], now: int) -> int:
    ballot, members, state, held, entry, what, keep, *rest = said
    entries = dict(zip(rest[::2], rest[1::2], strict=True))
    states = tuple(map(int, entries.pop("s", "").split()))
    value = what[1:] if what.startswith("=") else None
    answer: int = node.handle(
        Accept(
            *(int(ballot), members.split()[1], None if state == "=" else int(state), entry, value),
            *(_claim_of(held), tuple(entries.items()), states, _us(keep)),
        ),
        now,
    )
    return answer


def _claim_of(held: str) -> tuple[str, int] | None:
    if not held:
        return None
    _, claim, ballot = held.split()
    return claim, int(ballot)


def _take(node: Node, said: list[str], now: int) -> Any:
    claim, ballot, ttl, keep = said[0].split()[1], int(said[1]), _us(said[3]), _us(said[4])
    _, members, _, longest = said[5].split()
    take = Take(
        *(claim, ballot, ttl, members, _quarantine(said[6])),
        *(said[8:9] == ["+"], keep, _us(longest)),
    )
    answer = node.handle(take, now)
    kind = answer[0]
    if kind == "vote":
        return f"incumbent1 {claim} {answer[1]}".encode()
    lease = node.data.lease
    left = lease.expires - now // 1000 if lease else -1
    if kind == "again":
        return [f"incumbent1 {claim} {answer[1]}".encode(), left]
    time = str(now).encode()
    if kind == "members":
        return [b"members", _marker(answer[1]), -1, time, b""]
    if kind == "young":
        return [b"young", _marker(node.data.marker), -(-answer[1] // 1000), time, b""]
    floor = b"" if answer[-1] is None else str(answer[-1]).encode()
    return [kind.encode(), _value(lease.value) if lease else b"", left, time, floor]


def _renew(node: Node, said: list[str], now: int) -> Any:
    echo, members, wait, longest, head, ttl, _ = said
    _, claim, ballot = head.split()
    renew = Renew(
        *(claim, int(ballot), _us(ttl), members.split()[1], _quarantine(wait), _us(longest))
    )
    answer = node.handle(renew, now)
    if answer[0] == "members":
        return [b"members", _marker(answer[1])]
    word: Any = {"renewed": 1, "gone": 0}.get(answer[0])
    if word is None:
        word = b"f" if answer[1] is None else b"f%d" % answer[1]
    return [echo.encode(), word]


def _plant(node: Node, said: list[str], now: int) -> Any:
    value, ttl, keep, members, quarantine, floor = said
    _, claim, ballot = value.split()[:3]
    return node.handle(
        Plant(
            *(claim, int(ballot), _us(ttl), members.split()[1], _quarantine(quarantine)),
            *(int(floor) if floor else None, _us(keep)),
        ),
        now,
    )


def _revoke(node: Node, said: list[str], now: int) -> Any:
    return node.handle(Revoke(said[0].split()[1], int(said[1]), len(said) > 2), now)


def _give(node: Node, said: list[str], now: int) -> Any:
    _, claim, *token = said[0].split()
    lease = node.data.lease
    # Without a token any will do.
    anyhow = lease.value[1] if lease else 0
    return node.handle(Give(claim, int(token[0]) if token else anyhow), now)


def _found(node: Node, said: list[str], now: int) -> Any:
    _, members, _, longest = said[0].split()
    return node.handle(Found(members, int(said[1]), _us(longest)), now)


_SCRIPTS: Final[dict[str, Callable[[Node, list[str], int], Any]]] = {
    "take": _take,
    "renew": _renew,
    "plant": _plant,
    "revoke": _revoke,
    "give": _give,
    "found": _found,
    "promise": _promise,
    "accept": _accept,
}


def _us(milliseconds: str) -> int:
    return int(milliseconds) * 1000


def _quarantine(milliseconds: str) -> int | None:
    return None if milliseconds == "-" else _us(milliseconds)


def marker_of(node: Node) -> bytes | None:
    """What a new connection hears of it."""
    return _marker(node.data.marker) if node.data.marker else None


def _marker(marker: Marker | None) -> bytes:
    assert marker is not None
    return f"incumbent1 {marker[0]} {marker[1]} {marker[2] // 1000}".encode()


def _value(value: tuple[str, int]) -> bytes:
    claim, ballot = value
    return f"incumbent1 {claim} {ballot} 0 1 1000 {claim} ".encode()

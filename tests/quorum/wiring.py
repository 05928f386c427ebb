"""What the store packs for a node's scripts, told to the table of `node.py`, and its answers back.

So the very bytes that would go over the wire decide in the simulator too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hiredis

from incumbent.stores.quorum.dialect import MARKER
from incumbent.stores.quorum.scripts import SCRIPTS
from tests.quorum.node import Found, Give, Node, Plant, Renew, Revoke, Take

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
    if command[0] != b"EVALSHA":
        raise NotImplementedError(f"the table has no {command[0]!r}")
    keys = int(command[2])
    arguments = [part.decode() for part in command[3 + keys :]]
    return _SCRIPTS[_NAMES[command[1]]](node, arguments, now)


def _kept(node: Node, key: bytes, now: int) -> bytes | None:
    if key == MARKER.encode():
        return _marker(node.data.marker) if node.data.marker else None
    lease = node.data.lease
    return None if lease is None or now // 1000 > lease.expires else _value(lease.value)


def _take(node: Node, said: list[str], now: int) -> Any:
    claim, ballot, ttl, keep = said[0].split()[1], int(said[1]), _us(said[3]), _us(said[4])
    members, quarantine, raising = said[5].split()[1], _us(said[6]), said[8:9] == ["+"]
    answer = node.handle(Take(claim, ballot, ttl, members, quarantine, raising, keep), now)
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
        return [b"young", b"", -(-answer[1] // 1000), time, b""]
    floor = b"" if answer[-1] is None else str(answer[-1]).encode()
    return [kind.encode(), _value(lease.value) if lease else b"", left, time, floor]


def _renew(node: Node, said: list[str], now: int) -> Any:
    echo, members, wait, head, ttl, _ = said
    _, claim, ballot = head.split()
    quarantine = None if wait == "-" else _us(wait)
    renew = Renew(claim, int(ballot), _us(ttl), members.split()[1], quarantine)
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
            *(claim, int(ballot), _us(ttl), members.split()[1], _us(quarantine)),
            *(int(floor) if floor else None, _us(keep)),
        ),
        now,
    )


def _revoke(node: Node, said: list[str], now: int) -> Any:
    return node.handle(Revoke(said[0].split()[1], int(said[1])), now)


def _give(node: Node, said: list[str], now: int) -> Any:
    _, claim, *token = said[0].split()
    lease = node.data.lease
    # Without a token any will do.
    anyhow = lease.value[1] if lease else 0
    return node.handle(Give(claim, int(token[0]) if token else anyhow), now)


def _found(node: Node, said: list[str], now: int) -> Any:
    _, members, born = said[0].split()
    return node.handle(Found(members, int(born), int(said[1])), now)


_SCRIPTS: Final[dict[str, Callable[[Node, list[str], int], Any]]] = {
    "take": _take,
    "renew": _renew,
    "plant": _plant,
    "revoke": _revoke,
    "give": _give,
    "found": _found,
}


def _us(milliseconds: str) -> int:
    return int(milliseconds) * 1000


def _marker(marker: tuple[str, int]) -> bytes:
    return f"incumbent1 {marker[0]} {marker[1]}".encode()


def _value(value: tuple[str, int]) -> bytes:
    claim, ballot = value
    return f"incumbent1 {claim} {ballot} 0 1 1000 {claim} ".encode()

"""What `doctor` says of a quorum: of each node, and of their clocks together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from incumbent import clock
from incumbent._core.onestep import run
from incumbent.durations import say_seconds
from incumbent.errors import StoreError
from incumbent.stores.quorum.dialect import MARKER
from incumbent.stores.quorum.group import Quorum
from incumbent.stores.quorum.panel import Node
from incumbent.stores.redis.dial import dial
from incumbent.stores.redis.exchange import carry_out
from incumbent.stores.redis.resp import Program, Step, pack
from incumbent.stores.redis.server import diagnosis
from incumbent.stores.redis.wire import Wire

__all__ = ["diagnose"]

Finding = tuple[str, str, str]
_APART: Final = 1.0
_APART_MOST: Final = 60.0


def diagnose(quorum: Quorum, nodes: Sequence[Node], ttl: float, until: float) -> list[Finding]:
    """See Engine.diagnose."""
    found: list[Finding] = []
    offsets: list[float] = []
    sound = 0
    for place, node in enumerate(nodes):
        # Each has its share of the time that is left, so that one cannot use up all of it.
        by = clock.now() + max(0.0, until - clock.now()) / (len(nodes) - place)
        about, offset = _of_node(quorum, node, ttl, by)
        found += about
        if offset is not None:
            offsets.append(offset)
        sound += all(level != "error" for level, _, _ in about)
    return [_of_majority(quorum, sound), *_of_clocks(offsets), *found]


def _of_node(
    quorum: Quorum, node: Node, ttl: float, until: float
) -> tuple[list[Finding], float | None]:
    name = quorum.names[node.index]
    try:
        wire = Wire(dial(node.site, until))
    except StoreError as error:
        advice = "check the address, the password and the network"
        return [("error", f"{name}: {error}", advice)], None
    try:
        program = diagnosis(ttl, node.site.restart_wait, clock.now, clock.wall)
        about = run(carry_out(wire, program, until))
        marker, offset = run(carry_out(wire, _look(), until))
    except Exception as error:  # noqa: BLE001 - whatever it is, a diagnosis reports it
        return [("error", f"{name} answered nothing usable: {error}", "look at its log")], None
    finally:
        wire.close()
    # That replicas of a node lag behind matters only to who would promote one: see the docs.
    ours = [(level, f"{name}: {what}", todo) for level, what, todo in about]
    return [*ours, _of_marker(quorum, name, marker)], offset


def _look() -> Program[tuple[bytes | None, float]]:
    time, marker = yield Step(pack("TIME") + pack("GET", MARKER), 2)
    now = int(time[0]) + int(time[1]) / 1e6
    return marker if isinstance(marker, bytes) else None, now - clock.now()


def _of_marker(quorum: Quorum, name: str, marker: bytes | None) -> Finding:
    if marker is None:
        return ("ok", f"{name}: blank, not a member of any quorum yet", "")
    if not marker.startswith(b"incumbent1 " + quorum.dialect.members + b" "):
        return (
            "error",
            f"{name}: belongs to a quorum with other members",
            "use one list of members everywhere (members= where addresses differ)",
        )
    return ("ok", f"{name}: a member of this quorum", "")


def _of_majority(quorum: Quorum, sound: int) -> Finding:
    what = f"{sound} of {len(quorum.names)} servers are sound, {quorum.need} are needed"
    if sound < quorum.need:
        return ("error", what, "nothing is granted: bring back a majority")
    if sound < len(quorum.names):
        return ("warning", what, "bring back the rest before another one fails")
    return ("ok", what, "")


def _of_clocks(offsets: Sequence[float]) -> list[Finding]:
    if len(offsets) < 2:
        return []
    apart = max(offsets) - min(offsets)
    what = f"the servers' clocks are at most {say_seconds(apart)} apart"
    if apart > _APART_MOST:
        return [("error", what, "a server that is off by a minute does not vote: synchronise")]
    if apart > _APART:
        return [("warning", what, "synchronise them")]
    return [("ok", what, "")]

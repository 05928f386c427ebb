"""The findings of `doctor` about a quorum: about each node, and about their clocks together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import StoreError
from incumbent.stores.findings import Finding, cannot_tell, grants_nothing
from incumbent.stores.plan import run_blocking
from incumbent.stores.quorum.dialect import MARKER
from incumbent.stores.quorum.nodes import Quorum, QuorumNode, strangers
from incumbent.stores.redis.doctor import diagnosis
from incumbent.stores.redis.incarnation import read_facts, refuse_if_used_otherwise
from incumbent.stores.redis.resp import RequestBatch, RespProgram, pack
from incumbent.stores.redis.site import MARKER_KEY
from incumbent.stores.redis.sync import RedisWire, dial
from incumbent.stores.redis.wire import UNUSABLE, run_program

_APART: Final = 1.0
_APART_MOST: Final = 60.0


def diagnose(
    quorum: Quorum, nodes: Sequence[QuorumNode], ttl: float, until: float
) -> list[Finding]:
    """See Engine.diagnose."""
    found: list[Finding] = []
    offsets: list[float] = []
    sound = young = blank = silent = 0
    for place, node in enumerate(nodes):
        # Each node gets a share of the time left, so that no node can use up all of it.
        by = clock.now() + max(0.0, until - clock.now()) / (len(nodes) - place)
        about, look = _of_node(quorum, node, ttl, by)
        found += about
        if look is not None:
            offsets.append(look.offset)
            blank += look.marker is not None and quorum.dialect.was_blank(look.marker)
        else:
            silent += 1
        if all(level != "error" for level, _, _ in about):
            sound += 1
            young += look is not None and look.young > 0
    summary = [_of_majority(quorum, sound, young, silent), *_of_losses(quorum, blank)]
    return [*summary, *_of_clocks(offsets), *found]


def _of_node(
    quorum: Quorum, node: QuorumNode, ttl: float, until: float
) -> tuple[list[Finding], _NodeFindings | None]:
    name = quorum.names[node.index]
    try:
        wire = dial(node.site, until, RedisWire)
    except StoreError as error:
        advice = "check the address, the password and the network"
        return [("error", f"{name}: {error}", advice)], None
    try:
        about = run_blocking(run_program(wire, diagnosis(ttl, in_quorum=True), until))
        look = run_blocking(run_program(wire, _look(quorum.dialect.wait_of(ttl)), until))
    except (StoreError, *UNUSABLE) as error:
        return [("error", f"{name} answered nothing usable: {error}", "look at its log")], None
    finally:
        wire.close()
    # As plain findings: if one node grants nothing, the others still may.
    ours = [(level, f"{name}: {what}", todo) for level, what, todo in about]
    return [*ours, _of_marker(quorum, name, look)], look


class _NodeFindings(NamedTuple):
    """A node's marker, that of a server of its own, the offset of its clock, and its youth.

    `young`: seconds until it votes.
    """

    marker: bytes | None
    alone: object
    offset: float
    young: float


def _look(wait: float) -> RespProgram[_NodeFindings]:
    asked = (pack("TIME"), pack("INFO", "server"), pack("GET", MARKER), pack("GET", MARKER_KEY))
    time, info, raw, alone = yield RequestBatch(b"".join(asked), len(asked))
    now = int(time[0]) + int(time[1]) / 1e6
    marker = raw if isinstance(raw, bytes) else None
    born = [read_facts(info).born(now)] if isinstance(info, bytes) else []
    if marker and marker.count(b" ") == 3:
        born.append(int(marker.split(b" ")[2]) / 1e6)
    return _NodeFindings(marker, alone, now - clock.now(), max(born, default=0.0) + wait - now)


def _of_marker(quorum: Quorum, name: str, look: _NodeFindings) -> Finding:
    marker = look.marker
    try:
        refuse_if_used_otherwise(look.alone, MARKER_KEY, name)
    except StoreError as error:
        return ("error", str(error), "stop the other instances first")
    if marker is None:
        return ("ok", f"{name}: blank, not a member of any quorum yet", "")
    if not quorum.dialect.is_ours(marker):
        advice = "use one list of members everywhere (members= where addresses differ)"
        return ("error", str(strangers(quorum, quorum.names.index(name), marker)), advice)
    if look.young > 0:
        what = (
            f"{name}: a member of this quorum that is new, and votes in {say_seconds(look.young)}"
        )
        return ("warning", what, "wait (restart_wait)")
    return ("ok", f"{name}: a member of this quorum", "")


def _of_majority(quorum: Quorum, sound: int, young: int, silent: int) -> Finding:
    what = f"{sound} of {len(quorum.names)} servers are sound, {quorum.need} are needed"
    if sound - young < quorum.need <= sound - young + silent:
        return cannot_tell(what, f"{silent} gave no usable answer: bring back a majority")
    if sound < quorum.need:
        return grants_nothing(what, "nothing is granted: bring back a majority", level="error")
    if sound - young < quorum.need:
        return grants_nothing(f"{what}, but {young} are too new to vote", "wait (restart_wait)")
    if sound < len(quorum.names):
        return ("warning", what, "bring back the rest before another one fails")
    return ("ok", what, "")


def _of_losses(quorum: Quorum, blank: int) -> list[Finding]:
    if not blank:
        return []
    count = len(quorum.names)
    # See changes: a majority that has forgotten nothing must report, or else all nodes.
    enough = count - blank >= quorum.need
    needed = f"{quorum.need} of the other {count - blank}" if enough else f"all {count}"
    what = (
        f"{blank} of {count} servers were blank once (replaced, or emptied): fields and slots of a"
        f" name that was not used since need {needed} at first"
    )
    todo = "look at such a name while all are up (incumbent status NAME): then a majority knows it"
    return [("ok", what, "") if enough else ("warning", what, todo)]


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

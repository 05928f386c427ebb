"""What goes before a take, and what after a grant that is not believed.

That one is given back, and where that fails nobody says "not taken".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hiredis
import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import Ask, Granted, Key, TakeOutcome
from incumbent.net.pool import Broken
from incumbent.stores.plan import Plan, run_blocking
from incumbent.stores.redis.cluster import asking
from incumbent.stores.redis.incarnation import (
    Handshake,
    IncarnationMarker,
    ServerContext,
    ServerFacts,
)
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.records import Naming
from incumbent.stores.redis.resp import ASKING, SCRIPTS, RespProgram
from incumbent.stores.redis.runner import DIALECT, ReplicaConfirmation
from incumbent.stores.redis.site import Outdated, Packer, RedisSite
from incumbent.stores.redis.take import take_program
from incumbent.stores.redis.wire import run_program

KEY, CLAIM, ASK = Key("n", "k"), "c1", Ask(10.0, "host-1")
SITE, REQUESTS = RedisSite(RedisTarget(), "here"), Packer(Naming(None), "here")
MARK = IncarnationMarker("aaaa", 1, 1, "run1", "hist1")
GRANT = b"incumbent1 c1 1700000000000000"
TIME, MEMORY = [b"1700000000", b"0"], b"maxmemory:0\r\n"
SAME = [MARK.text.encode(), b"role:master\r\nmaster_replid:hist1\r\n", TIME, MEMORY]
DEMOTED = [MARK.text.encode(), b"role:slave\r\n", TIME, MEMORY]


class Wire(ServerFacts):
    """Answers what it was told to, step by step; `sent` is what it was asked."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.learn_from(Handshake(MARK, "key", "hist1", 1.7e9, 60.0), 50.0, 0.0)
        self.answers, self.sent = list(answers), list[bytes]()

    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        said = self.answers.pop(0)
        if isinstance(said, Broken):
            raise said
        self.sent.append(payload)
        assert len(said) == answers
        return list(said)


class Connections:
    """A runner that has this one wire."""

    dialect = DIALECT

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def run(self, plan: Plan[ServerContext, Any], until: float) -> Any:
        program = plan.start(ServerContext(SITE, REQUESTS, self._wire), until)
        return await run_program(cast("Any", self._wire), program, until)


def plainly(wire: Wire, ask: Ask = ASK) -> TakeOutcome:
    return run_blocking(run_program(cast("Any", wire), taking(wire, ask), clock.now() + 5))


def by_asking(wire: Wire, ask: Ask = ASK) -> TakeOutcome:
    return run_blocking(run_program(cast("Any", wire), asking(taking(wire, ask)), clock.now() + 5))


def confirmed(wire: Wire) -> TakeOutcome:
    layer = ReplicaConfirmation(cast("Any", Connections(wire)), 1, 0.1)
    return run_blocking(layer.take(KEY, CLAIM, ASK, clock.now() + 5))


def taking(wire: Wire, ask: Ask = ASK) -> RespProgram[TakeOutcome]:
    return take_program(ServerContext(SITE, REQUESTS, wire), KEY, CLAIM, ask, clock.now() + 5)


def unconfirmed(*given_back: Any) -> Wire:
    """A grant that no replica has."""
    return Wire([GRANT, *SAME], [0], *given_back)


READONLY = hiredis.ReplyError("READONLY You can't write against a read only replica.")
CLUSTERDOWN = hiredis.ReplyError("CLUSTERDOWN The cluster is down")
ENDS = [
    pytest.param([READONLY], id="refused"),
    pytest.param([CLUSTERDOWN], id="cluster-down"),
    pytest.param([0], id="not-found"),
]


@pytest.mark.parametrize("end", ENDS)
def test_a_grant_that_cannot_be_given_back_is_in_doubt(end: list[Any]) -> None:
    with pytest.raises(OutcomeUnknown, match="could not be given back"):
        plainly(Wire([GRANT, *DEMOTED], end))


@pytest.mark.parametrize("end", ENDS)
def test_an_unconfirmed_grant_that_cannot_be_given_back_is_in_doubt(end: list[Any]) -> None:
    with pytest.raises(OutcomeUnknown, match="could not be given back"):
        confirmed(unconfirmed(end))


@pytest.mark.parametrize("take", [plainly, confirmed])
def test_a_grant_whose_undoing_was_never_sent_is_in_doubt(
    take: Callable[[Wire], TakeOutcome],
) -> None:
    unsent = Broken("no time is left", sent=False, late=True)
    wire = Wire([GRANT, *DEMOTED], unsent) if take is plainly else unconfirmed(unsent)
    with pytest.raises(Broken) as caught:
        take(wire)
    assert caught.value.sent


def test_a_grant_that_was_given_back_is_certainly_none() -> None:
    with pytest.raises(Outdated) as caught:
        plainly(Wire([GRANT, *DEMOTED], [1]))
    assert not caught.value.sent
    with pytest.raises(StoreUnavailable, match="given back"):
        confirmed(unconfirmed([1]))


def test_a_connection_whose_grant_was_not_believed_is_trusted_no_more() -> None:
    wire = Wire([GRANT, *SAME], [GRANT, *DEMOTED], [0])
    plainly(wire)
    assert wire.unchanged_at > 0.0
    wire.check_sent = 0.0  # as if that was long ago
    with pytest.raises(OutcomeUnknown):
        plainly(wire)
    assert wire.unchanged_at == 0.0


def test_where_the_key_is_on_its_way_to_a_node_the_undoing_goes_by_asking_too() -> None:
    asked = b"OK"
    wire = Wire([asked, GRANT, *DEMOTED], [asked, 1])
    with pytest.raises(Outdated):
        by_asking(wire)
    assert [each.startswith(ASKING) for each in wire.sent] == [True, True]


def test_a_take_by_asking_sends_a_script_that_the_node_forgot() -> None:
    forgotten = hiredis.ReplyError("NOSCRIPT No matching script.")
    wire = Wire([b"OK", forgotten, *SAME], [b"OK", GRANT, *SAME])
    assert by_asking(wire)
    assert [each.startswith(ASKING) for each in wire.sent] == [True, True]
    assert b"EVAL\r\n" in wire.sent[1]


def test_a_lone_request_by_asking_sends_a_script_that_the_node_forgot() -> None:
    forgotten = hiredis.ReplyError("NOSCRIPT No matching script.")
    wire = Wire([b"OK", GRANT, *DEMOTED], [b"OK", forgotten], [b"OK", 1])
    with pytest.raises(Outdated):
        by_asking(wire)
    assert [each.startswith(ASKING) for each in wire.sent] == [True] * 3
    assert b"EVAL\r\n" in wire.sent[2]


# -- a ttl that is longer than all before


LONG = Ask(40.0, "host-1")
TOLD = MARK._replace(longest=40_000).text.encode()
INFO = b"role:master\r\nrun_id:run1\r\nmaster_replid:hist1\r\nuptime_in_seconds:99\r\n"
MEETING = [INFO, [b"1700000000", b"0"], None, MARK.text.encode(), *[b"sha"] * len(SCRIPTS)]
OOM = hiredis.ReplyError("OOM command not allowed")


@pytest.mark.parametrize("take", [plainly, by_asking])
def test_a_long_ttl_is_told_before_it_is_taken(take: Callable[[Wire, Ask], TakeOutcome]) -> None:
    asked = [b"OK"] if take is by_asking else []
    wire = Wire([*asked, *MEETING], [*asked, TOLD], [*asked, GRANT, TOLD, *SAME[1:]])
    assert isinstance(take(wire, LONG), Granted)
    assert TOLD in wire.sent[1]
    assert wire.longest == 40.0


@pytest.mark.parametrize("answer", [OOM, READONLY])
def test_a_long_ttl_that_nobody_can_be_told_of_is_not_taken(answer: hiredis.ReplyError) -> None:
    wire = Wire(MEETING, [answer])
    with pytest.raises(StoreUnavailable, match=r"OOM|READONLY"):
        plainly(wire, LONG)
    assert wire.answers == []


def test_a_long_ttl_is_not_told_to_another_incarnation() -> None:
    other = MARK._replace(id="bbbb").text.encode()
    meeting = [other if each == MARK.text.encode() else each for each in MEETING]
    told = MARK._replace(id="bbbb", longest=40_000).text.encode()
    with pytest.raises(Outdated):
        plainly(Wire(meeting, [told]), LONG)

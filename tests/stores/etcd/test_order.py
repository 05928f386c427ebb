"""The line of waiters on etcd: whose turn it is, by what is compared when a take arrives."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from math import inf

import pytest

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import UNLIMITED, Ask, Gone, Granted, Parting, Queue, Queued, Released, Renewed
from incumbent.stores.etcd import client, kv
from incumbent.stores.etcd.kv import EtcdProgram
from incumbent.stores.etcd.taking import EtcdTake
from incumbent.stores.plan import run_blocking
from tests import tiers
from tests.stores.etcd.world import (
    PREFIX,
    Party,
    created_of,
    lease_of,
    new_claim,
    operations,
    party,
    sent,
    soon,
)
from tests.support.etcd import EtcdServer
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

LONG = Ask(60.0, "host-1")
FAIR = replace(LONG, queue=Queue(60.0, fair=True))
UNFAIR = replace(LONG, queue=Queue(60.0))
JOINS = 150


def queued(one: Party, claim: str = "", ask: Ask = FAIR) -> Queued:
    outcome = one.store.take(one.key, claim or one.claim, ask, soon())
    assert isinstance(outcome, Queued), outcome
    return outcome


def area(one: Party) -> str:
    """The beginning of the keys in line."""
    return kv.names_of(PREFIX, one.key).line


def places(server: EtcdServer, one: Party) -> dict[str, str]:
    """The key of each claim in line, in its order."""
    found = server.values(area(one), by_age=True)
    return {json.loads(value)["claim"]: key for key, value in found.items()}


def line(server: EtcdServer, one: Party) -> list[str]:
    """The claims in line, in its order."""
    return list(places(server, one))


def in_line(server: EtcdServer, one: Party, claim: str = "") -> str:
    """The key of a claim in line."""
    return places(server, one)[claim or one.claim]


def asking(one: Party, ask: Ask = FAIR) -> EtcdTake:
    """A take of this claim that is not sent yet, and goes by what its process knows."""
    dialect = operations(one).dialect
    take = EtcdTake(dialect.cluster, one.key, one.claim, ask)
    take.incarnation, take.closing_seen = dialect.cluster.incarnation, 0
    return take


def join(one: Party, take: EtcdTake) -> None:
    """Send what puts its claim in line."""

    def program() -> EtcdProgram[None]:
        yield kv.transaction((yield from take.line.join()))

    run_blocking(operations(one).run_program(program(), soon()))


def test_a_line_that_is_wrong_makes_no_second_holder(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    here.take(ask=LONG)
    assert queued(other).place == 0
    by_place = asking(other)
    assert not sent(other, by_place)
    own_etcd.etcdctl("del", "--prefix", area(other))
    without = asking(other)
    operations(other).cluster.sessions.places.of(other.key).clear()
    assert not sent(other, without)
    assert len(here.store.read(here.key, soon()).holdings) == 1


def test_a_take_by_a_place_is_refused_while_an_older_one_is_there(
    here: Party, other: Party
) -> None:
    granted = here.take(ask=LONG)
    queued(here, first := new_claim())
    assert queued(other).place == 1
    late = asking(other)
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    assert not sent(other, late)
    here.store.give(here.key, here.take(first, ask=FAIR).claim, None, soon())
    assert sent(other, late)


def test_a_take_by_a_place_that_was_lost_is_not_granted(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    granted = here.take(ask=LONG)
    assert queued(other).place == 0
    late = asking(other)
    queued(here, new_claim())
    own_etcd.etcdctl("del", in_line(own_etcd, other))
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    assert not sent(other, late)


def test_who_has_lost_its_place_is_granted_a_free_name(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    granted = here.take(ask=LONG)
    queued(other)
    own_etcd.etcdctl("del", "--prefix", area(other))
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    mine = other.take(ask=FAIR)
    assert other.store.renew([other.renewal(mine, 60.0)], soon()) == [Renewed()]


def test_a_take_without_a_place_is_refused_while_somebody_stands_in_line(
    here: Party, other: Party
) -> None:
    granted = here.take(ask=LONG)
    other.refused()
    early = asking(other)
    queued(here, new_claim())
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    assert not sent(other, early)


def test_whoever_overtakes_counts_it_and_two_who_saw_the_same_count_do_not_both_pass(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    granted = here.take(ask=LONG)
    queued(here, first := new_claim(), UNFAIR)
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    once = other.take(ask=LONG)
    # That take has seen how often the first was overtaken, and so does the next one of its process.
    other.claim = new_claim()
    again = asking(other, LONG)
    assert again.line.first is not None
    assert other.store.give(other.key, once.claim, once.token, soon()) == Released()
    third = here.take(new_claim(), ask=LONG)
    assert here.store.give(here.key, third.claim, third.token, soon()) == Released()
    assert not sent(other, again)
    key = in_line(own_etcd, here, first)
    assert json.loads(own_etcd.etcdctl("get", key, "--print-value-only"))["overtaken"] == 2


def test_a_claim_whose_join_got_no_answer_leaves_no_place_behind_when_it_is_granted(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    granted = here.take(ask=LONG)
    queued(here, first := new_claim(), UNFAIR)
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    # From this grant on its process knows the first in line, and may overtake it again.
    once = other.take(ask=LONG)
    other.claim = new_claim()
    join(other, asking(other, UNFAIR))
    assert other.store.give(other.key, once.claim, once.token, soon()) == Released()
    other.take(ask=LONG)
    assert line(own_etcd, other) == [first]


def test_a_place_lives_while_its_claim_waits_and_ends_a_heartbeat_later(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    here.take(ask=LONG)
    brief = replace(LONG, queue=Queue(4.0, fair=True))
    seen = queued(other, ask=brief).seen
    created = created_of(own_etcd, key := in_line(own_etcd, other))
    other.store.wait_change(other.key, seen, soon(8.0))
    assert created_of(own_etcd, key) == created
    eventually(lambda: line(own_etcd, here) == [])


@pytest.mark.left(tiers.LONG)
def test_candidates_who_wait_keep_their_places(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    here.take(ask=LONG)
    seen = queued(other, ask=replace(LONG, queue=Queue(4.0), candidacy=60.0)).seen
    other.store.wait_change(other.key, seen, soon(10.0))
    assert line(own_etcd, here) == [other.claim]


def test_a_place_that_was_lost_is_taken_anew_at_the_end(
    own_etcd: EtcdServer, here: Party, other: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_RECHECK_EVERY", inf)
    granted = here.take(ask=LONG)
    brief = replace(LONG, queue=Queue(4.0, fair=True))
    seen = queued(other, ask=brief).seen
    queued(here, second := new_claim())
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(other.store.wait_change, other.key, seen, soon(60.0))
        own_etcd.etcdctl("lease", "revoke", f"{lease_of(own_etcd, in_line(own_etcd, other)):x}")
        # It hears of it by the next keep-alive, and asks again.
        waits.result(40.0)
    assert queued(other, ask=brief).place == 1
    assert line(own_etcd, here) == [second, other.claim]
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    assert queued(other, ask=brief).reason == "turn"
    here.take(second, ask=FAIR)


def test_a_claim_that_was_given_up_meanwhile_does_not_join(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    here.take(ask=LONG)
    take = asking(other)
    assert other.store.give(other.key, other.claim, None, soon()) == Gone()

    join(other, take)
    assert line(own_etcd, here) == []


def test_waiters_of_a_process_that_died_are_gone_from_the_line(
    own_etcd: EtcdServer, here: Party
) -> None:
    here.take(ask=LONG)
    with party(own_etcd.store_url(PREFIX)) as gone:
        gone.key = here.key
        queued(gone, ask=replace(LONG, queue=Queue(1.0, fair=True)))
    eventually(lambda: line(own_etcd, here) == [])


@pytest.mark.left(tiers.LONG)
def test_a_hundred_and_fifty_join_at_once_for_three_requests_each(
    own_etcd: EtcdServer, here: Party
) -> None:
    here.take(ask=LONG)
    before = own_etcd.requests()
    with ThreadPoolExecutor(30) as pool:
        claims = [new_claim() for _ in range(JOINS)]
        joined = list(pool.map(lambda claim: queued(here, claim), claims))
    asked = own_etcd.requests()
    assert sorted(it.place for it in joined) == list(range(JOINS))
    calls = ("Txn", "Range", "LeaseGrant", "LeaseKeepAlive")
    assert sum(asked[call] - before.get(call, 0) for call in calls) <= 3 * JOINS
    order = {claim: it.place for claim, it in zip(claims, joined, strict=True)}
    assert line(own_etcd, here) == sorted(claims, key=order.__getitem__)


def test_readers_are_let_in_beside_each_other_once_no_writer_is_before_them(
    here: Party, other: Party
) -> None:
    read = replace(FAIR, permits=UNLIMITED)
    first = here.take(ask=read)
    queued(other)
    late = new_claim()
    assert queued(here, late, read).reason == "turn"
    assert (
        here.store.give(here.key, first.claim, first.token, soon(), parting=Parting(shared=True))
        == Released()
    )
    writer = other.take(ask=FAIR)
    assert queued(here, late, read).reason == "held"
    assert other.store.give(other.key, writer.claim, writer.token, soon()) == Released()
    here.take(late, ask=read)


def test_a_take_by_a_place_writes_no_trace_of_it(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    granted = here.take(ask=LONG)
    queued(other)
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    mine = other.take(ask=FAIR)
    assert line(own_etcd, here) == []
    assert other.store.give(other.key, mine.claim, mine.token, soon()) == Released()
    # So the next take of anybody finds nobody in line.
    before = own_etcd.requests()["Txn"]
    here.take(new_claim(), ask=LONG)
    assert own_etcd.requests()["Txn"] - before == 1


def test_the_same_grant_again_is_no_waiter(own_etcd: EtcdServer, here: Party) -> None:
    granted = here.take(ask=FAIR)
    # A claim that had joined, and whose grant was not heard of.
    join(here, asking(here))
    assert line(own_etcd, here) == [here.claim]
    again = here.store.take(here.key, here.claim, FAIR, soon())
    assert isinstance(again, Granted)
    assert again.token == granted.token
    assert line(own_etcd, here) == []


@pytest.mark.parametrize("value", ["", "not json", '{"format": 9, "holder": "x"}'])
def test_a_place_that_cannot_be_read_is_named_and_left_alone(
    own_etcd: EtcdServer, here: Party, value: str
) -> None:
    own_etcd.etcdctl("put", area(here) + "ab/0", value)
    with pytest.raises(StoreUnavailable, match=area(here) + "ab/0") as caught:
        here.take(ask=LONG)
    assert caught.value.permanent
    assert own_etcd.keys(area(here)) == [area(here) + "ab/0"]
    assert here.store.read(here.key, soon()).holdings == ()
    own_etcd.etcdctl("del", area(here) + "ab/0")
    here.take(ask=LONG)


def test_who_is_overtaken_takes_over_once_it_is_its_turn(here: Party, other: Party) -> None:
    """Bounded overtaking holds between processes, whatever each remembers of the line."""
    granted = here.take(ask=LONG)
    queued(here, first := new_claim(), UNFAIR)
    for one in (other, here, other, other):
        assert here.store.give(here.key, granted.claim, granted.token, soon()) == Released()
        granted = one.take(new_claim(), ask=LONG)
    assert here.store.give(here.key, granted.claim, granted.token, soon()) == Released()
    assert other.refused(ask=LONG).reason == "turn"
    assert here.refused(ask=LONG).reason == "turn"
    here.take(first, ask=UNFAIR)


def test_waiters_who_come_and_go_use_the_same_keys(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    # Until a compaction, a read of the line looks at every key that ever was in it.
    here.take(ask=LONG)
    keys = set()
    for _ in range(5):
        queued(other, claim := new_claim())
        keys.add(in_line(own_etcd, other, claim))
        assert other.store.give(other.key, claim, 0, soon()) == Gone()
        assert line(own_etcd, here) == []
    assert len(keys) == 1


def test_a_key_that_another_claim_has_is_no_place(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    here.take(ask=LONG)
    queued(other, first := new_claim())
    # Its process has forgotten it, and gives the same number to the next one.
    operations(other).cluster.sessions.places.forget(other.key, first)
    assert queued(other).place == 1
    assert line(own_etcd, here) == [first, other.claim]


def left(one: Party) -> bool:
    """Whether it has left the line; a connection that was cut may cost a try."""
    with suppress(StoreError):
        return one.store.give(one.key, one.claim, 0, soon()) == Gone()
    return False


def test_a_place_whose_removal_failed_is_removed_by_the_next_try(
    own_etcd: EtcdServer, here: Party
) -> None:
    here.take(ask=LONG)
    with (
        FaultProxy(own_etcd.port) as proxy,
        party(f"etcd://127.0.0.1:{proxy.port}{PREFIX}?restart_wait=0") as other,
    ):
        other.key = here.key
        queued(other)
        proxy.refuse()
        with pytest.raises(StoreError):
            other.store.give(other.key, other.claim, 0, soon(1.0))
        proxy.heal()
        eventually(lambda: left(other))
        assert line(own_etcd, here) == []

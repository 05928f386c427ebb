"""etcd: what several hold at once: no more than there are seats, and nobody beside foreign keys."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from incumbent.errors import StoreError
from incumbent.model import (
    UNLIMITED,
    Ask,
    Granted,
    Key,
    Parting,
    Queue,
    Queued,
    Refused,
    Released,
    Renewed,
)
from incumbent.stores.etcd.sessions import ClaimState, Session
from incumbent.stores.etcd.taking import EtcdTake
from tests import tiers
from tests.stores.etcd.world import (
    ASK,
    PREFIX,
    Party,
    acquired_by,
    created_of,
    etcdctl_lock,
    lease_of,
    new_claim,
    operations,
    party,
    place,
    put_foreign,
    sent,
    soon,
)
from tests.support.etcd import EtcdServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

LONG = replace(ASK, ttl=60.0)
TWO = replace(LONG, permits=2)
READS = replace(LONG, permits=UNLIMITED)
WAITS = replace(LONG, queue=Queue(5.0))


@pytest.fixture
def here(own_etcd: EtcdServer) -> Iterator[Party]:
    with party(own_etcd.store_url(PREFIX)) as one:
        yield one


def a_take(one: Party, ask: Ask) -> EtcdTake:
    """A take that has seen a free name."""
    cluster = operations(one).cluster
    take = EtcdTake(cluster, one.key, new_claim(), ask)
    take.incarnation, take.sharers = cluster.incarnation, ()
    return take


def known(one: Party) -> None:
    """The cluster's incarnation is known."""
    beside = Key("faults", "beside"), new_claim()
    assert isinstance(one.store.take(*beside, ASK, soon()), Granted)


# -- at the same moment


def test_of_those_who_saw_the_same_seat_free_one_gets_it(here: Party) -> None:
    known(here)
    one, other = (a_take(here, replace(ASK, permits=1)) for _ in range(2))
    assert [sent(here, one), sent(here, other)] == [True, False]


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2), (2, UNLIMITED), (UNLIMITED, 2)])
def test_of_those_who_ask_for_other_permits_at_once_one_gets_it(
    here: Party, first: int, second: int
) -> None:
    known(here)
    takes = [a_take(here, replace(ASK, permits=permits)) for permits in (first, second)]
    assert [sent(here, take) for take in takes] == [True, False]


def test_of_those_who_want_it_alone_and_shared_at_once_one_gets_it(here: Party) -> None:
    known(here)
    shared, alone = a_take(here, TWO), a_take(here, ASK)
    assert [sent(here, shared), sent(here, alone)] == [True, False]
    here.key = here.key._replace(name="other")
    alone, shared = a_take(here, ASK), a_take(here, TWO)
    assert [sent(here, alone), sent(here, shared)] == [True, False]


def test_many_threads_share_two_seats_and_everybody_has_one_in_the_end(here: Party) -> None:
    inside: set[str] = set()
    most = 0

    def work(_: int) -> None:
        nonlocal most
        for _ in range(5):
            claim = new_claim()
            grant = eventually(lambda claim=claim: granted(here, claim))  # type: ignore[misc]
            inside.add(claim)
            most = max(most, len(inside))
            inside.discard(claim)
            assert grant is not None
            assert here.store.give(here.key, claim, grant.token, soon(60)) == Released()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert most <= 2


def granted(one: Party, claim: str) -> Granted | None:
    try:
        outcome = one.store.take(one.key, claim, TWO, soon())
    except StoreError:
        # A machine that is busy: it is asked again, and is the same grant.
        return None
    return outcome if isinstance(outcome, Granted) else None


# -- a take in doubt


def test_a_take_in_doubt_asks_for_the_same_seat_again(here: Party, own_etcd: EtcdServer) -> None:
    """Else the first one may arrive later, and one claim has two seats."""
    known(here)
    take = a_take(here, TWO)
    seat = take._seat()
    doubted = ClaimState(here.key, take.claim, Session("1", 10, 0.0), soon(), "h", 0.0, 10.0)
    doubted.own_key, doubted.permits = seat, 2
    take.sessions.remember(doubted)
    other = next(claim for claim in iter(new_claim, "") if first_seat(here, claim) == seat)
    assert isinstance(granted(here, other), Granted)
    # One seat is free, but it is not the one that the first take asked for.
    assert isinstance(here.store.take(here.key, take.claim, TWO, soon()), Refused)
    assert len(own_etcd.keys(place(here))) == 1
    assert isinstance(granted(here, new_claim()), Granted)


def first_seat(one: Party, claim: str) -> str:
    take = a_take(one, TWO)
    take.claim = claim
    return take._seat()


def test_takes_of_one_process_at_once_have_an_entry_each_in_the_history(here: Party) -> None:
    known(here)
    places = [a_take(here, TWO)._history_key() for _ in range(2)]
    assert len(set(places)) == 2


# -- beside foreign clients


def test_who_would_share_waits_for_a_foreign_client_that_waits(
    own_etcd: EtcdServer, here: Party
) -> None:
    """It waits for the older keys only, and would have the name beside the new one."""
    first = here.take(ask=READS)
    put_foreign(own_etcd, here)
    assert here.refused(ask=READS).holders[0].foreign
    assert not sent(here, a_take(here, READS))
    assert here.store.renew([here.renewal(first)], soon()) == [Renewed()]
    assert here.store.give(here.key, here.claim, first.token, soon()) == Released()
    assert own_etcd.keys(place(here)) == [place(here, "7f")]


def test_etcdctl_waits_for_all_who_share_it(own_etcd: EtcdServer, here: Party) -> None:
    one, other = here.take(ask=READS), here.take(new_claim(), ask=READS)
    with etcdctl_lock(own_etcd, place(here)[:-1]) as theirs, ThreadPoolExecutor(1) as pool:
        got = pool.submit(acquired_by, theirs)
        eventually(lambda: len(own_etcd.keys(place(here))) == 3)
        assert here.store.give(here.key, one.claim, one.token, soon()) == Released()
        assert here.store.renew([here.renewal(other)], soon()) == [Renewed()]
        assert not got.done()
        assert here.store.give(here.key, other.claim, other.token, soon()) == Released()
        got.result(30)
        assert here.refused(ask=READS).holders[0].foreign


def test_a_ticket_lets_nobody_in_beside_those_who_share_it(
    own_etcd: EtcdServer, here: Party
) -> None:
    """Also if the ticket is older: only foreign clients go by the age of keys."""
    first = here.take(ask=LONG)
    queued = here.store.take(here.key, new_claim(), WAITS, soon())
    assert isinstance(queued, Queued)

    def has_ticket() -> bool:
        here.store.wait_change(here.key, queued.seen, soon(0.5))
        return place(here, "ticket") in own_etcd.keys(place(here))

    eventually(has_ticket)
    assert here.store.give(here.key, here.claim, first.token, soon()) == Released()
    sharer = here.take(new_claim(), ask=TWO)
    put_foreign(own_etcd, here)
    alone = a_take(here, ASK)
    alone.ticket = created_of(own_etcd, place(here, "ticket"))
    assert not sent(here, alone)
    assert not here.refused().holders[0].foreign
    assert here.store.give(here.key, sharer.claim, sharer.token, soon()) == Released()
    here.take(new_claim())


# -- renewals


def test_all_who_share_it_move_to_another_etcd_lease(own_etcd: EtcdServer, here: Party) -> None:
    grants = [here.take(new_claim(), ask=READS) for _ in range(60)]
    keys = own_etcd.keys(place(here, "shared/"))
    before = lease_of(own_etcd, keys[0])
    longer = [here.renewal(grant, 120.0) for grant in grants]
    assert here.store.renew(longer, soon()) == [Renewed()] * 60
    after = {lease_of(own_etcd, key) for key in (keys[0], keys[30], keys[-1])}
    assert len(after) == 1
    assert before not in after


def test_another_process_goes_on_with_a_seat_and_gives_it_back(
    own_etcd: EtcdServer, here: Party
) -> None:
    grants = [here.take(new_claim(), ask=TWO) for _ in range(2)]
    with party(own_etcd.store_url(PREFIX)) as other:
        other.key = here.key
        renewals = [here.renewal(grant) for grant in grants]
        assert other.store.renew(renewals, soon()) == [Renewed()] * 2
        first = grants[0]
        again = other.take(first.claim, ask=TWO)
        assert again.token == first.token
        given = other.store.give(
            here.key, first.claim, first.token, soon(), parting=Parting(shared=True)
        )
        assert given == Released()
        assert len(own_etcd.keys(place(here))) == 1
        other.take(new_claim(), ask=TWO)


def test_of_many_who_share_a_name_it_is_read_once(here: Party) -> None:
    """Each read has them all: a hundred would not fit into a reply."""
    request = next(operations(here).cluster.sessions.lookup([here.key] * 100))
    assert request.body.count(b"request_range") == 1


# -- keys that were edited


@pytest.mark.left(tiers.FORMS, "-*", "*NaN*")
@pytest.mark.parametrize("key", ["held", "shared/2/0"])
@pytest.mark.parametrize("ttl", ["", ',"ttl":0', ',"ttl":NaN', ',"ttl":Infinity', ',"ttl":"x"'])
def test_a_key_with_a_ttl_that_is_none_holds_the_name(
    own_etcd: EtcdServer, here: Party, key: str, ttl: str
) -> None:
    value = f'{{"format":1,"claim":"c","holder":"h"{ttl},"permits":2}}'
    own_etcd.etcdctl("put", place(here, key), value)
    assert here.refused().reason == "held"
    (holding,) = here.store.read(here.key, soon()).holdings
    assert holding.holder == "h"

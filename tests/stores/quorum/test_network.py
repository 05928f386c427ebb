"""A minority of masters that fails changes nothing; a majority that fails stops everybody."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Iterator

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import Ask, Gone, Granted, Refused, Released, Renewed
from tests import tiers
from tests.stores.quorum.world import SLOW, Members, Party, party, soon, take_everywhere, where_kept
from tests.support.pace import BUSY, took
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

ASK = Ask(10.0, "host-1")
SHORT = Ask(1.5, "host-1")
TRUSTED = "restart_wait=0"


@pytest.fixture(scope="module")
def three() -> Iterator[Members]:
    with Members(3) as members:
        yield members


@pytest.fixture(scope="module")
def five() -> Iterator[Members]:
    with Members(5) as members:
        yield members


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in {"three", "five"} & set(request.fixturenames):
        for member in request.getfixturevalue(name).all:
            member.server.thaw()
            member.proxy.heal()


@pytest.fixture
def here(three: Members) -> Iterator[Party]:
    with party(three.url(TRUSTED)) as one:
        yield one


def whole_life(one: Party, ask: Ask = ASK) -> int:
    granted = one.take(ask)
    assert isinstance(one.renew(granted, ask.ttl), Renewed)
    assert isinstance(one.give(granted), Released)
    return granted.token


@pytest.mark.left(tiers.CRASHES, "frozen", "refusing")
@pytest.mark.parametrize("kind", ["frozen", "cut off", "refusing", "answers lost", "slow"])
def test_one_of_three_in_trouble_changes_nothing(three: Members, here: Party, kind: str) -> None:
    first = whole_life(here)
    for member in three.all:
        member.begin(kind)
        then = whole_life(here)
        assert then > first
        member.end()
        first = then


@pytest.mark.parametrize("kind", ["frozen", "refusing", "answers lost"])
def test_two_of_five_in_trouble_change_nothing(five: Members, kind: str) -> None:
    with party(five.url(TRUSTED)) as one:
        first = whole_life(one)
        for at in (1, 3):
            five.all[at].begin(kind)
        assert whole_life(one) > first


def test_two_of_five_in_trouble_change_nothing_for_a_coroutine(five: Members) -> None:
    with party(five.url(TRUSTED)) as one:
        five.all[0].begin("frozen")
        five.all[4].begin("cut off")

        async def life() -> None:
            store = one.engine.async_store()
            granted = await store.take(one.key, one.claim, ASK, soon())
            assert isinstance(granted, Granted)
            given = await store.give(one.key, one.claim, granted.token, soon())
            assert isinstance(given, Released)
            await store.aclose()

        asyncio.run(life())


@pytest.mark.parametrize("kind", ["frozen", "refusing", "answers lost", "cut off"])
def test_without_a_majority_nothing_is_granted(three: Members, here: Party, kind: str) -> None:
    for at in (0, 2):
        three.all[at].begin(kind)
    began = clock.now()
    with pytest.raises(StoreError):
        here.try_take(SHORT, within=0.5)
    assert took(began) < 0.5 + BUSY


def test_a_minority_grant_is_given_back_at_once(three: Members, here: Party) -> None:
    for at in (0, 1):
        three.all[at].begin("refusing")
    with pytest.raises(StoreError):
        here.try_take(ASK, within=0.6)
    # It would run out after ten seconds.
    eventually(lambda: not where_kept(three, here.claim), within=5.0)


@pytest.mark.parametrize("blind", [(0, 1), (0, 1, 2)])
def test_no_master_keeps_a_claim_whose_answers_were_lost(
    three: Members, here: Party, blind: tuple[int, ...]
) -> None:
    whole_life(here)
    for at in blind:
        three.all[at].begin("answers lost")
    with pytest.raises(StoreError):
        here.try_take(SHORT, within=0.8)
    for at in blind:
        three.all[at].end()
    eventually(lambda: not where_kept(three, here.claim), within=SHORT.ttl + BUSY)
    with party(three.url(TRUSTED)) as other:
        other.key = here.key
        assert isinstance(other.take(SHORT), Granted)


def test_a_slow_master_holds_up_nobody(three: Members, here: Party) -> None:
    whole_life(here)
    three.all[1].begin("slow")
    # Who waited for it would be slow each time; a busy machine is now and then.
    eventually(lambda: seconds_of_life(here) < 2 * SLOW)


def seconds_of_life(one: Party) -> float:
    began = time.perf_counter()
    whole_life(one)
    return time.perf_counter() - began


def test_a_frozen_master_holds_up_only_once(three: Members, here: Party) -> None:
    whole_life(here)
    three.all[2].begin("frozen")
    whole_life(here)
    eventually(lambda: seconds_of_life(here) < 0.2)


def test_a_refusal_names_the_holder_and_changes_nothing(three: Members, here: Party) -> None:
    granted = here.take(ASK)
    with party(three.url(TRUSTED)) as other:
        other.key = here.key
        refused = other.try_take(Ask(10.0, "host-2"))
        assert isinstance(refused, Refused)
        assert refused.holders[0].holder == "host-1"
        eventually(lambda: not where_kept(three, other.claim))
    assert isinstance(here.renew(granted, 10.0), Renewed)


def test_the_same_claim_again_is_the_same_grant(three: Members, here: Party) -> None:
    # One that did not vote for it in time would be asked for a higher ballot.
    granted = take_everywhere(three.all, here, ASK)
    assert here.take(ASK).token == granted.token


def test_split_votes_resolve(five: Members) -> None:
    """Eight at once for one name, again and again: each time one of them gets it soon."""
    with party(five.url(TRUSTED)) as first:
        parties = [Party(first.engine, first.key) for _ in range(8)]
        tokens: list[int] = []
        lock, barrier = threading.Lock(), threading.Barrier(8)

        def contend(one: Party) -> None:
            barrier.wait()
            granted = one.take(ASK, within=20.0)
            with lock:
                tokens.append(granted.token)
            one.give(granted)

        threads = [threading.Thread(target=contend, args=(one,)) for one in parties]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tokens) == 8
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("gives_up", [True, False])
def test_a_take_that_the_network_held_back_until_its_claim_was_given_up_is_refused(
    *, gives_up: bool
) -> None:
    """The network has its bytes; what gives the claim up comes by another way. Else it is granted
    to nobody that waits for it."""
    options = f"{TRUSTED}&members=held"
    with (
        Members(3) as held,
        party(held.url(options)) as one,
        party(held.url(options, near=True)) as near,
    ):
        near.key = one.key
        one.give(one.take(ASK))
        for member in held.all:
            member.proxy.blackhole()
        late = secrets.token_hex(16)
        with pytest.raises(OutcomeUnknown):
            one.try_take(ASK, within=1.0, claim=late)
        if gives_up:
            assert near.store.give(one.key, late, None, soon()) == Gone()
        for member in held.all:
            member.proxy.heal()
        time.sleep(0.5)
        eventually(lambda: bool(near.store.read(near.key, soon()).holdings) == (not gives_up))

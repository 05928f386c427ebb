"""`redis+sentinel://` follows the master and believes nothing that the sentinels cannot confirm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Gone, Granted, Refused, Renewal, Renewed, RenewOutcome
from incumbent.stores.redis import sentinel
from incumbent.stores.redis.site import MARKER_KEY
from tests import tiers
from tests.contract.chosen import ALL
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.forks import in_a_child
from tests.support.pace import BUSY, took
from tests.support.redis_sentinels import Node, Sentinels

pytestmark = pytest.mark.server

OLD_MASTER_FOR = 0.3
SHORT, LONG = 0.5, 60.0
"""Seconds of `restart_wait`: over soon, and never over before somebody looks."""


@pytest.fixture(scope="module")
def running() -> Iterator[Sentinels]:
    """For tests that leave the master what it is."""
    with Sentinels() as sentinels:
        yield sentinels


@pytest.fixture(autouse=True)
def settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinel, "OLD_MASTER_FOR", OLD_MASTER_FOR)


def renewal(one: Party, granted: Granted) -> Renewal:
    return Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)


def renewed(one: Party, granted: Granted) -> RenewOutcome:
    return one.store.renew([renewal(one, granted)], soon())[0]


async def renewed_async(one: Party, granted: Granted) -> RenewOutcome:
    (outcome,) = await one.engine.async_store().renew([renewal(one, granted)], soon())
    return outcome


TROUBLES: dict[str, tuple[Callable[[Node], None], Callable[[Node], None]]] = {
    "killed": (lambda node: node.server.kill(), lambda node: node.server.start()),
    "frozen": (lambda node: node.server.freeze(), lambda node: node.server.thaw()),
    "cut off": (lambda node: node.proxy.blackhole(), lambda node: node.proxy.heal()),
}


# A frozen one as well on Valkey always, and here with everything else.
@pytest.mark.left(tiers.CRASHES, "killed")
@pytest.mark.parametrize("trouble", list(TROUBLES) if ALL else ["killed", "cut off"])
def test_after_a_failover_only_the_new_master_is_believed(trouble: str) -> None:
    begin, end = TROUBLES[trouble]
    with (
        Sentinels() as sentinels,
        asyncio.Runner() as runner,
        party(sentinels.url) as hasty,
        party(sentinels.url) as idle,
        party(sentinels.url, f"restart_wait={LONG}") as careful,
        party(sentinels.url, f"restart_wait={SHORT}") as patient,
    ):
        granted = hasty.take()
        assert runner.run(hasty.take_async()) == granted
        idle.take()
        before = sentinels.master
        begin(before)
        began = clock.now()
        with pytest.raises(StoreError):
            hasty.take(new_claim(), within=0.3)
        with pytest.raises(StoreError):
            runner.run(hasty.take_async(new_claim(), within=0.3))
        assert took(began) < 0.6 + BUSY
        after = sentinels.wait_for_failover(before)
        end(before)
        # It is back, thinks that it is the master, and old connections to it work again.
        idle.key = hasty.key._replace(name="idle")
        looked = clock.now()
        idle.take()
        assert idle.claim in after.server.cli("GET", idle.main)
        assert renewed(hasty, granted) == Gone("store_restarted")
        assert runner.run(renewed_async(hasty, granted)) == Gone("store_restarted")
        with pytest.raises(StoreUnavailable, match="promoted") as caught:
            careful.take()
        left = caught.value.retry_after or 0.0
        assert left <= LONG + OLD_MASTER_FOR
        # From the first look on, and longer: a sentinel may not have heard of the promotion yet.
        assert left + clock.now() - looked > LONG + OLD_MASTER_FOR - 0.05
        fresh = patiently(patient.take)
        assert fresh.token > granted.token
        assert patient.claim in after.server.cli("GET", patient.main)
        # A client that goes there past the sentinels leaves all leases as they are.
        marker = after.server.cli("GET", MARKER_KEY)
        with party(after.server.url) as direct:
            direct.take()
        assert after.server.cli("GET", MARKER_KEY) == marker
        assert renewed(patient, fresh) == Renewed()


@pytest.mark.left(tiers.SIDES, "blocking")
@pytest.mark.parametrize("side", ["blocking", "async"])
def test_what_waited_for_a_frozen_master_is_not_sent_to_it_after_a_promotion(side: str) -> None:
    with (
        Sentinels(replicas=1) as sentinels,
        ThreadPoolExecutor(1) as thread,
        party(sentinels.url) as late,
        party(sentinels.url) as next_one,
    ):
        before = sentinels.master
        before.server.freeze()
        ask = partial(late.take, within=10)
        if side == "async":
            ask = partial(asyncio.run, late.take_async(within=10))
        waits = thread.submit(ask)
        after = sentinels.wait_for_failover(before)
        next_one.key = late.key
        patiently(partial(next_one.take, new_claim()))
        assert not waits.done()
        age(late)
        before.server.thaw()
        # The old master thinks still that it is one, and answers before it learns more.
        with pytest.raises(StoreUnavailable, match="asked again"):
            waits.result()
        assert late.claim not in after.server.cli("GET", late.main)


@pytest.mark.left(tiers.LONG)
def test_an_old_master_that_is_named_again_waits_for_the_leases_of_the_one_between() -> None:
    with (
        Sentinels(replicas=1) as sentinels,
        party(sentinels.url, "restart_wait=0") as holder,
        party(sentinels.url, f"restart_wait={LONG}") as careful,
        party(sentinels.url, f"restart_wait={SHORT}") as patient,
    ):
        old = sentinels.master
        old.server.kill()
        new = sentinels.wait_for_failover(old)
        # It is back, and the sentinels wait for seconds before they tell it to follow.
        old.server.start()
        # A process that asked before the failover meets it now.
        with party(old.server.url) as late:
            late.take()
        granted = patiently(holder.take)
        new.proxy.blackhole()
        assert sentinels.wait_for_failover(new) is old
        careful.key = patient.key = holder.key
        with pytest.raises(StoreUnavailable, match="promoted") as caught:
            patiently(careful.take, but_for="promoted")
        assert (caught.value.retry_after or 0.0) > OLD_MASTER_FOR
        assert patiently(patient.take).token > granted.token


def patiently(take: Callable[[], Granted], but_for: str = "no such words") -> Granted:
    """As a caller does: again once the store says that it may be worth it."""
    give_up = time.monotonic() + 40
    while True:
        try:
            return take()
        except StoreError as error:
            if but_for in str(error) or time.monotonic() > give_up:
                raise
            time.sleep((error.retry_after or 0.05) + 0.01)


@pytest.mark.left(tiers.LONG)
def test_a_lock_of_a_user_outlasts_a_failover() -> None:
    import incumbent

    with Sentinels() as sentinels:
        url = f"{sentinels.url}?restart_wait=200ms"
        with incumbent.Client(url) as client:
            with client.lock("job", ttl=3) as first:
                token = first.fencing_token
            before = sentinels.master
            before.server.kill()
            sentinels.wait_for_failover(before)
            with client.lock("job", ttl=3, timeout=15) as lease:
                assert lease.fencing_token > token
                assert lease.valid


# -- sentinels that do not answer


@contextmanager
def without(sentinels: Sentinels, count: int) -> Iterator[None]:
    for one in sentinels.sentinels[:count]:
        one.freeze()
    try:
        yield
    finally:
        for one in sentinels.sentinels[:count]:
            one.thaw()


def age(one: Party) -> None:
    """What the sentinels last said is too old by now."""
    store: Any = one.store
    followed = store.operations._followed
    followed.checked -= 5
    target, until = followed.site.meant
    followed.site.meant = target, until - 5


def count_again(one: Party) -> None:
    """What the sentinels last said counts, however long ago a slow machine asked them."""
    store: Any = one.store
    followed = store.operations._followed
    followed.checked = clock.now()
    followed.site.meant = followed.site.target, clock.now() + sentinel.PROVES


def test_one_sentinel_of_three_may_be_silent(running: Sentinels) -> None:
    with party(running.url) as one, without(running, 1):
        began = clock.now()
        one.take(within=30.0)
        asyncio.run(one.take_async(within=30.0))
        assert took(began) < 5.0


def test_without_a_majority_of_sentinels_nothing_is_proved(running: Sentinels) -> None:
    with party(running.url) as one, asyncio.Runner() as runner:
        granted = one.take()
        runner.run(one.take_async())
        with without(running, 2):
            # Until then the answer of a second ago counts.
            count_again(one)
            assert renewed(one, granted) == Renewed()
            age(one)
            asks: list[Callable[[], object]] = [
                lambda: one.take(within=1.5),
                lambda: one.store.renew([renewal(one, granted)], soon(1.5)),
                lambda: runner.run(one.take_async(within=1.5)),
            ]
            for ask in asks:
                began = clock.now()
                with pytest.raises(StoreUnavailable, match="1 of 3 sentinels"):
                    ask()
                assert took(began) < 1.5 + BUSY
        assert renewed(one, granted) == Renewed()


def test_a_name_that_the_sentinels_do_not_know_is_final(running: Sentinels) -> None:
    with party(running.url.replace("/main", "/other")) as one:
        takes: list[Callable[[], object]] = [one.take, lambda: asyncio.run(one.take_async())]
        for take in takes:
            with pytest.raises(StoreUnavailable, match="no master of the name 'other'") as caught:
                take()
            assert caught.value.permanent


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forks_child_follows_by_itself_and_leaves_the_parents_connections_alone(
    running: Sentinels,
) -> None:
    with party(running.url) as one, asyncio.Runner() as runner:
        granted = one.take()
        runner.run(one.take_async())
        assert in_a_child(lambda: 0 if isinstance(one.refused(), Refused) else 2) == 0
        assert renewed(one, granted) == Renewed()
        assert runner.run(renewed_async(one, granted)) == Renewed()


def test_many_tasks_ask_the_sentinels_once(running: Sentinels) -> None:
    async def main(one: Party) -> int:
        before = connections()
        await asyncio.gather(*(one.take_async() for _ in range(50)))
        return connections() - before

    def connections() -> int:
        said = running.sentinels[0].cli("INFO", "stats")
        line = next(it for it in said.splitlines() if it.startswith("total_connections_received"))
        return int(line.partition(":")[2])

    with party(running.url) as one:
        # One by the engine, and one by each look at the counter.
        assert asyncio.run(main(one)) <= 3


def test_the_master_and_the_sentinels_have_passwords_of_their_own() -> None:
    with Sentinels(password="m-sesame", sentinel_password="s-sesame", replicas=1) as sentinels:
        login = "restart_wait=0&sentinel_password=s-sesame"
        with party(sentinels.url, login) as one:
            one.take()
            asyncio.run(one.take_async())
            assert not [it for it in one.engine.diagnose(15.0, soon()) if it[0] == "error"]
        wrong = (
            (sentinels.url, "sentinel_password=s-wrong"),
            (sentinels.url, ""),
            (sentinels.url.replace("m-sesame", "m-wrong"), login),
        )
        for url, options in wrong:
            with party(url, options) as one:
                with pytest.raises(StoreUnavailable) as caught:
                    one.take()
                assert caught.value.permanent
                assert "wrong" not in f"{caught.value}{caught.value.__cause__}{one.engine.url}"


# -- wait_replicas


def test_a_grant_that_no_replica_has_is_given_back(running: Sentinels) -> None:
    replicas = [node for node in running.nodes if node is not running.master]
    options = "restart_wait=0&wait_replicas=1:1s"
    with party(running.url, options) as one, asyncio.Runner() as runner:
        granted = one.take()
        assert renewed(one, granted) == Renewed()
        for node in replicas:
            node.server.freeze()
        try:
            with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
                renewed(one, granted)
            for name in ("blocking", "async"):
                one.key = one.key._replace(name=name)
                with pytest.raises(StoreUnavailable, match="given back") as caught:
                    one.take() if name == "blocking" else runner.run(one.take_async())
                assert not caught.value.permanent
                assert running.master.server.cli("EXISTS", one.main).strip() in ("0", ":0")
        finally:
            for node in replicas:
                node.server.thaw()
        patiently(one.take)
        assert isinstance(runner.run(one.take_async()), Granted)
        # Whoever is refused is told at once, without asking any replica.
        assert one.refused().holders[0].holder == "host-1"


def test_more_replicas_than_there_are_confirm_nothing(running: Sentinels) -> None:
    options = "restart_wait=0&wait_replicas=3:1s"
    with (
        party(running.url, options) as one,
        pytest.raises(StoreUnavailable, match="2 of 3 replicas"),
    ):
        one.take()

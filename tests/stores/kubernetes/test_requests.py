"""What the API server is asked for: one PUT for what is known, and nothing while nobody acts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from incumbent import Lock, clock
from incumbent.model import Batch, Granted, Key, Queue, Released, Renewed
from incumbent.net.readers import ThreadWakeup
from incumbent.policy import Policy
from incumbent.runtime.link import link_for
from incumbent.stores.kubernetes import watching
from incumbent.stores.kubernetes.watching import Watches
from incumbent.stores.plan import run_blocking
from tests import tiers
from tests.stores.kubernetes.world import open_at, url_of
from tests.stores.party import ASK, Party, new_claim, soon
from tests.support.kubernetes import ApiServer

LONG = replace(ASK, ttl=60.0)


def test_a_take_a_renewal_and_a_give_of_a_known_name_are_one_put_each(
    own_api_server: ApiServer, alone: Party
) -> None:
    alone.store.give(alone.key, alone.claim, alone.take().token, soon())
    own_api_server.forget_requests()
    for _ in range(3):
        granted = alone.take()
        (renewed,) = alone.store.renew([alone.renewal(granted)], soon())
        assert renewed == Renewed()
        assert alone.store.give(alone.key, alone.claim, granted.token, soon()) == Released()
    # A take also looks at the marker, if that is more than ten seconds ago.
    verbs = [it.verb for it in own_api_server.requests if "marker" not in it.path]
    assert verbs == ["update"] * 9


def test_a_refusal_is_one_get(own_api_server: ApiServer, alone: Party) -> None:
    alone.take()
    own_api_server.forget_requests()
    alone.refused()
    verbs = [it.verb for it in own_api_server.requests if "marker" not in it.path]
    assert verbs == ["get"]


def test_a_hundred_renewals_are_a_hundred_puts_and_nothing_else(
    own_api_server: ApiServer, alone: Party
) -> None:
    granted = dict[Key, Granted]()
    for index in range(100):
        key = Key("many", f"n{index}")
        outcome = alone.store.take(key, new_claim(), ASK, soon())
        assert isinstance(outcome, Granted)
        granted[key] = outcome
    batch = Batch(Party(alone.engine, key).renewal(it) for key, it in granted.items())
    own_api_server.forget_requests()
    assert alone.store.renew(batch, soon()) == [Renewed()] * 100
    assert Counter(it.verb for it in own_api_server.requests) == {"update": 100}


@pytest.mark.left(tiers.LONG)
def test_waiters_of_a_process_share_one_watch_and_poll_nothing(
    own_api_server: ApiServer, alone: Party
) -> None:
    keys = [Key("wait", f"n{index}") for index in range(5)]
    parties = [Party(alone.engine, key) for key in keys]
    holders = [party.take(ask=LONG) for party in parties]
    own_api_server.forget_requests()
    ended, all_there = list[Key](), threading.Barrier(20)

    def wait(party: Party) -> None:
        outcome = party.refused(ask=replace(LONG, queue=Queue(30.0)))
        all_there.wait(60.0)
        until = clock.now() + 3.0
        party.store.wait_change(party.key, outcome.seen, until)
        if clock.now() < until:
            ended.append(party.key)

    with ThreadPoolExecutor(20) as pool:
        waits = [pool.submit(wait, party) for party in parties * 4]
    for each in waits:
        each.result()
    served = [it for it in own_api_server.requests if "marker" not in it.path]
    joined = sum(it.verb == "update" and it.status == 200 for it in served)
    assert joined == 20
    assert Counter(it.verb for it in served if it.verb in ("list", "watch")) == {
        "list": 1,
        "watch": 1,
    }
    gets = sum(it.verb == "get" for it in served)
    assert gets <= 2 * len(parties) * 4 + sum(it.status == 409 for it in served), served
    assert ended == []
    for party, granted in zip(parties, holders, strict=True):
        party.store.give(party.key, party.claim, granted.token, soon())


def test_a_waiter_is_woken_by_the_watch(api_server: ApiServer, one: Party, other: Party) -> None:
    granted = one.take()
    refused = other.refused(ask=replace(ASK, queue=Queue(30.0)))
    until = clock.now() + 60.0
    gives = threading.Timer(0.5, lambda: one.store.give(one.key, one.claim, granted.token, soon()))
    gives.start()
    other.store.wait_change(one.key, refused.seen, until)
    assert clock.now() < until - 30.0
    gives.join()


def test_a_task_is_woken_by_the_watch_too(api_server: ApiServer, place: str, one: Party) -> None:
    asyncio.run(_wait_in_a_task(one, url_of(api_server, place)))


async def _wait_in_a_task(one: Party, url: str) -> None:
    granted = one.take()
    engine = open_at(url)
    store = engine.async_store()
    outcome = await store.take(one.key, new_claim(), ASK, soon())
    until = clock.now() + 60.0
    gives = threading.Timer(0.5, lambda: one.store.give(one.key, one.claim, granted.token, soon()))
    gives.start()
    await store.wait_change(one.key, getattr(outcome, "seen", ""), until)
    assert clock.now() < until - 30.0
    gives.join()
    await store.aclose()
    engine.store().close()


@pytest.mark.left(tiers.LONG)
def test_leases_that_are_taken_at_once_are_renewed_at_different_instants(
    own_api_server: ApiServer, alone: Party
) -> None:
    locks = [Lock(f"n{index}", store=alone.engine, ttl=60.0) for index in range(100)]
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        buckets = link_for(alone.engine).keeper._state.buckets
        instants = list(buckets._at.values())
        # Half a second apart, 4 or 5 in each; some more if they were taken for longer than that.
        assert max(len(bucket) for there in instants for bucket in there.values()) <= 12
        assert len(instants) >= 12


@pytest.mark.left(tiers.LONG)
def test_many_leases_are_renewed_no_oftener_than_their_ttl_asks_and_not_all_at_once(
    own_api_server: ApiServer, alone: Party
) -> None:
    # A fifth of 60 s. 100 at a ttl of 60 s are at most 10 requests a second.
    every = Policy(ttl=12.0, grace=2.0).renew_every
    assert 100 / Policy(ttl=60.0, grace=10.0).renew_every <= 10.0
    locks = [Lock(f"n{index}", store=alone.engine, ttl=12.0, grace=2.0) for index in range(100)]
    with ExitStack() as held:
        leases = [held.enter_context(lock) for lock in locks]
        own_api_server.forget_requests()
        began = clock.now()
        time.sleep(3 * every)
        served = [it for it in own_api_server.requests if it.verb == "update"]
        passed = clock.now() - began
        assert all(lease.valid for lease in leases)
    assert Counter(it.status for it in served).keys() == {200}
    # Each has one renewal more at most than there are periods.
    assert 100 <= len(served) <= 100 * (passed / every + 1)
    assert max(Counter(it.path for it in served).values()) <= passed / every + 2


def test_what_only_another_elector_has_written_is_not_taken_for_removed(
    api_server: ApiServer, place: str, one: Party
) -> None:
    name = f"job-{new_claim()}"
    api_server.create(place, name, holderIdentity="go", leaseDurationSeconds=600)
    party = Party(one.engine, Key("default", name))
    refused = party.refused()
    assert refused.holders[0].foreign
    until = clock.now() + 1.5
    party.store.wait_change(party.key, refused.seen, until)
    assert clock.now() >= until
    assert party.refused().holders[0].holder == "go"


def test_a_waiter_that_is_interrupted_while_its_thread_starts_keeps_no_watch_going(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise TimeoutError("of a signal handler")

    monkeypatch.setattr(watching, "start_thread", interrupted)
    watches: Any = Watches(lambda: cast("Any", SimpleNamespace(known=None)))
    with pytest.raises(TimeoutError):
        run_blocking(watches.wait(Key("n", "a"), "", soon(), ThreadWakeup()))
    assert watches._watches["n"].waiters == {}


def test_a_waiter_that_comes_while_all_watches_are_closed_does_no_harm() -> None:
    watches: Any = Watches(cast("Any", None))

    class Closing:
        def close(self) -> None:
            before[f"another {id(self)}"] = self

    before = watches._watches = {"one": Closing(), "two": Closing()}
    watches.close()
    assert watches._watches == {}

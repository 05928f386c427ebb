"""`lock_delay`: after a holder that did not release it, a name stays closed for so much longer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import incumbent
from incumbent import AsyncLock, ConfigError, Lock, Policy, clock
from incumbent.lease import LeaseMachine
from incumbent.locks.options import overruled, policy_from
from incumbent.model import Granted
from tests import tiers
from tests.support.etcd import EtcdServer
from tests.support.pace import took

DELAY = 2.0


@pytest.mark.left(tiers.STORES, "redis", "etcd")
def test_a_failed_holder_keeps_the_name_closed_for_the_delay_beyond_its_belief(
    every_store: str,
) -> None:
    settings: dict[str, Any] = {"store": every_store, "ttl": 1, "lock_delay": DELAY}
    lease = Lock("a", **settings).acquire()
    first, renewed = lease.belief.proof.deadline, lease.renew()
    assert renewed <= 1
    believed_until = lease.belief.proof.deadline
    assert believed_until > first
    lease.belief.leave_to_ttl()
    with pytest.raises(incumbent.NotAcquired, match="ttl has"):
        Lock("a", **settings).acquire(0)
    with Lock("a", **settings).acquire(20):
        assert clock.now() >= believed_until + DELAY


def test_a_release_frees_the_name_at_once(every_store: str) -> None:
    settings: dict[str, Any] = {"store": every_store, "ttl": 5, "lock_delay": 600}

    async def other() -> None:
        async with AsyncLock("a", timeout=10, **settings) as lease:
            await lease.renew()

    started = clock.now()
    # The second one finds the session of the first, if the store has sessions.
    for _ in range(2):
        with Lock("a", timeout=10, **settings) as lease:
            assert lease.remaining > 1
    asyncio.run(other())
    # By the delay it would take ten minutes.
    assert took(started) < 30


def test_a_lease_with_a_long_delay_begins_in_a_session_that_has_been_there_for_a_while(
    etcd_server: EtcdServer,
) -> None:
    settings: dict[str, Any] = {"store": f"etcd://{etcd_server.endpoint}/delays?restart_wait=0"}
    for _ in range(2):
        with Lock("a", ttl=3, lock_delay=600, **settings).acquire(20) as lease:
            lease.check()
        # Longer than the lease's renew_deadline: so much would be missing of the session.
        time.sleep(2.4)


def test_renewals_keep_the_delay_ahead_of_the_belief(every_store: str) -> None:
    lock = Lock("a", store=every_store, ttl=5, lock_delay=10)
    with incumbent.Client(every_store) as client, lock as lease:
        lease.renew()
        (holding,) = client.read("a").holdings
        assert (holding.remaining or 0.0) > lease.remaining + 9
        assert holding.ttl == 15


def test_a_short_grant_takes_from_the_belief_and_never_from_the_delay() -> None:
    machine = LeaseMachine(Policy(15, lock_delay=60))
    machine.note_sent(100.0)
    assert machine.note_granted(Granted("claim", 1, 72.0), 100.1)
    assert machine.deadline + 60 < 100.0 + 72.0


def test_a_grant_that_covers_little_more_than_the_delay_is_not_believed() -> None:
    machine = LeaseMachine(Policy(15, lock_delay=60))
    machine.note_sent(100.0)
    assert not machine.note_granted(Granted("claim", 1, 64.0), 100.1)


@pytest.mark.parametrize("delay", [-1, "soon", True, None, float("nan"), 86_401])
def test_a_delay_that_is_none_is_refused(delay: Any) -> None:
    with pytest.raises(ConfigError, match="lock_delay") as caught:
        Lock("a", store="memory:", lock_delay=delay)
    assert caught.value.name == "lock_delay"


def test_ttl_and_delay_together_are_what_a_store_has_to_take() -> None:
    Lock("a", store="memory:", ttl=15, lock_delay="23h")
    with pytest.raises(ConfigError, match=r"ttl=15s \+ lock_delay=1d: this store takes") as caught:
        Lock("a", store="memory:", ttl=15, lock_delay="24h")
    assert caught.value.name == "lock_delay"


def test_the_delay_is_one_of_the_times_that_a_policy_says() -> None:
    policy = Policy(15, lock_delay="1m")
    assert (policy.kept_for, policy.span) == (75, Policy(15).span)
    with pytest.raises(ConfigError, match="give it only there"):
        policy_from({"policy": policy, "lock_delay": 1})
    assert overruled({"policy": policy}, {"lock_delay": 1}) == {"lock_delay": 1}
    assert overruled({"lock_delay": 1, "ttl": 9}, {"policy": policy}) == {"policy": policy}
    assert overruled({"lock_delay": 1}, {"ttl": 9}) == {"lock_delay": 1, "ttl": 9}

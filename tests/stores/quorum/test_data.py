"""Masters that lose their data, restart, or have a wrong clock."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import combinations

import pytest

from incumbent import Lock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, Gone, Granted, Key, Refused, Released, Renewed, Slot, Stored
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.redis.records import Naming
from tests import tiers
from tests.quorum.walls import ShiftedServer
from tests.stores.quorum.world import Member, Members, Party, party, soon, take_everywhere
from tests.support.needs import needs
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

TTL = 2.5
ASK = Ask(TTL, "host-1")
AN_HOUR = 3600.0


@pytest.fixture
def three() -> Iterator[Members]:
    with Members(3) as members:
        yield members


def votes_again(members: Members, ttl: float = TTL) -> None:
    """Every master has been up, and has known its birth, for long enough."""
    with party(members.url()) as one:
        one.take(Ask(ttl, "nobody"))
        time.sleep(ttl)


@pytest.mark.left(tiers.LONG)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wiped", "killed and emptied"])
def test_each_master_in_turn_loses_what_it_has_during_one_term(three: Members, kind: str) -> None:
    place = Naming(None).of(Key("default", "rolling")).lease
    with Lock("rolling", store=three.url(), ttl=2 * TTL).acquire(timeout=40) as lease:
        token = lease.fencing_token

        def is_there(member: Member) -> bool:
            lease.check()
            return f" {token} " in member.server.cli("GET", place)

        for member in three.all:
            # One that voted late has it by the first renewal.
            eventually(partial(is_there, member))
        for member in three.all:
            member.begin(kind)
            member.end()
            # It votes again one ttl after it was first asked, and has the lease again after the
            # first renewal beyond that.
            eventually(partial(is_there, member))
        assert lease.fencing_token == token
        with party(three.url()) as other:
            other.key = Key("default", "rolling")
            assert isinstance(other.try_take(ASK), Refused)


def test_a_wiped_master_does_not_vote_before_one_ttl(three: Members) -> None:
    votes_again(three)
    with party(three.url()) as holder, party(three.url()) as other:
        other.key = holder.key
        # A bare majority: the third does not know of the lease.
        three.all[2].begin("refusing")
        granted = holder.take(ASK)
        three.all[2].end()
        began = time.monotonic()
        three.all[0].begin("wiped")
        taken = other.take(ASK)
        assert time.monotonic() - began > 0.9 * TTL
        assert taken.token > granted.token
        assert isinstance(holder.renew(granted, TTL), Gone)


@pytest.mark.left(tiers.FORMS, "0")
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_release_that_finds_a_majority_without_the_lease_says_so(
    three: Members, kept: int
) -> None:
    votes_again(three)
    ask = Ask(5.0, "host-1")
    for lost in combinations(three.all, 3 - kept):
        with party(three.url()) as holder:
            granted = take_everywhere(three.all, holder, ask)
            place = Naming(None).of(holder.key).lease
            for member in lost:
                assert member.server.cli("DEL", place) == "1"
            said = holder.give(granted)
            assert isinstance(said, Released if kept > 1 else Gone)


def test_a_release_that_only_a_silent_master_could_tell_of_is_not_known(three: Members) -> None:
    """One had it, one had lost it: whether it was held to the end, the third knows."""
    votes_again(three)
    with party(three.url()) as holder:
        granted = take_everywhere(three.all, holder, Ask(5.0, "host-1"))
        three.all[1].server.cli("DEL", Naming(None).of(holder.key).lease)
        three.all[2].begin("refusing")
        with pytest.raises(OutcomeUnknown):
            holder.give(granted)


def test_the_first_token_of_a_new_quorum_is_no_minute_ahead_of_the_clock(three: Members) -> None:
    with Lock("first", store=three.url("restart_wait=0")).acquire(timeout=40) as lease:
        assert abs(lease.fencing_token / 1e6 - time.time()) < 20


def test_masters_that_restarted_do_not_vote_before_one_ttl(three: Members) -> None:
    ask = Ask(3.0, "host-1")
    with party(three.url("restart_wait=0")) as quick:
        quick.take(ask)
    for member in three.all[:2]:
        member.server.restart(empty=True)
    for option, wait in (("restart_wait=3s", 3), ("", TTL_DEFAULT)):
        url = three.url(option or "restart_wait=0")
        with (
            party(url if option else url.partition("?")[0]) as careful,
            pytest.raises(StoreUnavailable) as caught,
        ):
            careful.try_take(ask)
        assert caught.value.retry_after is not None
        assert wait / 2 < caught.value.retry_after <= wait + 1


def test_a_renewal_that_lost_its_majority_is_over_for_good(three: Members) -> None:
    with party(three.url("restart_wait=0")) as one:
        granted = one.take(ASK)
        for member in three.all[:2]:
            member.begin("wiped")
        assert isinstance(one.renew(granted, TTL), Gone)
        assert isinstance(one.renew(granted, TTL), Gone)


def test_all_masters_wiped_is_a_new_cluster_and_the_token_grows(three: Members) -> None:
    with party(three.url("restart_wait=0")) as one:
        granted = one.take(ASK)
        for member in three.all:
            member.begin("wiped")
        again = Party(one.engine, one.key).take(ASK)
        assert again.token > granted.token


@pytest.mark.slow
@needs(shutil.which("cc") is not None, "a C compiler: the clock is a preloaded library")
@pytest.mark.parametrize("shift", [AN_HOUR, -AN_HOUR])
def test_one_master_with_a_wrong_clock_changes_nothing(shift: float) -> None:
    with ExitStack() as stack:
        makers = iter([ShiftedServer((), shift), ShiftedServer(), ShiftedServer()])
        members = stack.enter_context(Members(3, lambda: next(makers)))
        one = stack.enter_context(party(members.url("restart_wait=0")))
        last = 0
        for _ in range(5):
            granted = one.take(ASK)
            assert granted.token > last
            # Not of that clock: of the median.
            assert abs(granted.token / 1e6 - time.time()) < 5
            last = granted.token
            assert isinstance(one.renew(granted, TTL), Renewed)
            one.give(granted)
        members.all[1].begin("refusing")
        if shift > 0:
            # By its own clock it was new an hour from now: it counts as dead.
            with pytest.raises(StoreError, match="its clock is ahead"):
                one.try_take(ASK)
        else:
            granted = one.take(ASK)
            assert granted.token > last
            assert abs(granted.token / 1e6 - time.time()) < 61
        members.all[1].end()


@pytest.mark.slow
@needs(shutil.which("cc") is not None, "a C compiler: the clock is a preloaded library")
@pytest.mark.parametrize("shift", [AN_HOUR, -AN_HOUR])
def test_a_clock_that_steps_at_one_master_costs_nobody_the_lease(shift: float) -> None:
    with ExitStack() as stack:
        servers = [ShiftedServer() for _ in range(3)]
        makers = iter(servers)
        members = stack.enter_context(Members(3, lambda: next(makers)))
        holder = stack.enter_context(party(members.url("restart_wait=0")))
        other = stack.enter_context(party(members.url("restart_wait=0")))
        other.key = holder.key
        granted = holder.take(ASK)
        servers[0].set_wall(shift)
        assert isinstance(other.try_take(ASK), Refused)
        assert isinstance(holder.renew(granted, TTL), Renewed)
        assert isinstance(other.try_take(ASK), Refused)
        holder.give(granted)
        taken = other.take(ASK)
        assert isinstance(taken, Granted)
        assert taken.token > granted.token


@pytest.mark.slow
@needs(shutil.which("cc") is not None, "a C compiler: the clock is a preloaded library")
def test_a_master_whose_clock_steps_ahead_lets_no_slot_be_used_twice() -> None:
    servers = [ShiftedServer() for _ in range(3)]
    makers = iter(servers)
    with Members(3, lambda: next(makers)) as members, party(members.url("restart_wait=0")) as one:
        ask = Ask(TTL, "host-1", slot=Slot("day", AN_HOUR))
        one.give(one.take(ask))
        servers[0].set_wall(3 * AN_HOUR)
        assert isinstance(one.store.put(one.key, "note", b"x", None, soon()), Stored)
        assert "day" in one.store.read(one.key, soon()).slots
        again = Party(one.engine, one.key).try_take(ask)
        assert isinstance(again, Refused)
        assert again.reason == "used"

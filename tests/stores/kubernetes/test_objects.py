"""What stands in a Lease, and what others have written there."""

from __future__ import annotations

import re
from typing import Any

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Field, Granted, Key, Renewal, Renewed
from incumbent.rules import keeping, taking
from incumbent.rules.record import NOTHING, Entry, Moment, holders
from incumbent.stores.kubernetes.objects import (
    KEY,
    MARKER,
    RECORD,
    SKEW,
    LeaseSight,
    beside_of,
    lease_with,
    micro_time,
    object_name,
    record_of,
    wall_of,
)
from incumbent.stores.registers import Incarnation, Seen, Swap, Wanted

JOB = Key("default", "job")
WALL = 1_800_000_000_000_000
SECOND = 1_000_000


def seen(lease: dict[str, Any] | None, wall: int = WALL, passed: float = 0.0) -> Seen:
    """What a process sees that has looked at an object for so many seconds."""
    sight = LeaseSight(lease, 0.0)
    now = sight.now(passed)
    record = record_of(sight, JOB, wall, now, "here")
    beside = beside_of(sight, JOB, wall, now, "here")
    return Seen(record, sight, now, wall, Incarnation("e"), beside=beside)


def swapped(at: Seen, record: Any, *entries: Entry, wall: int = WALL) -> dict[str, Any]:
    lease = lease_with(Swap(Wanted(JOB), at, record, entries), "ns", wall, at.now + 1)
    assert isinstance(lease, dict), lease
    lease["metadata"]["resourceVersion"] = "1"
    return lease


def taken(at: Seen, claim: str = "c1", ask: Ask | None = None) -> dict[str, Any]:
    """The object after a grant."""
    outcome, record, _, entries = taking.take(
        at.record, claim, ask or Ask(15.0, "host-1"), Moment(at.now, at.wall, epoch="e")
    )
    assert isinstance(outcome, Granted), outcome
    assert record is not None
    return swapped(at, record, *entries, wall=at.wall)


def by_other(lease: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The object after another elector has written its fields."""
    return lease | {"spec": lease["spec"] | spec}


def of_other(holder: str = "go", seconds: int = 15, transitions: int = 0) -> dict[str, Any]:
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": seconds,
        "renewTime": micro_time(WALL),
        "leaseTransitions": transitions,
    }
    return {"metadata": {"name": "job", "uid": "u", "resourceVersion": "1"}, "spec": spec}


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["job", "a.b-c", "0"])
def test_a_dns_name_of_the_default_namespace_is_the_objects_name(name: str) -> None:
    assert object_name(Key("default", name)) == name


@pytest.mark.parametrize(
    "key",
    [
        Key("shop", "job"),
        Key("default", "Job"),
        Key("default", "a/b"),
        Key("default", "a_b"),
        Key("default", "-a"),
        Key("default", "@" * 200),
        Key("default", MARKER),
        Key("default", object_name(Key("shop", "job"))),
    ],
)
def test_any_other_name_gets_a_dns_name_of_its_own(key: Key) -> None:
    name = object_name(key)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
    assert len(name) <= 253
    assert name not in (key.name, MARKER)


def test_a_micro_time_is_read_as_it_was_written() -> None:
    assert micro_time(WALL + 7) == "2027-01-15T08:00:00.000007Z"
    assert wall_of(micro_time(WALL + 7)) == WALL + 7
    assert wall_of("yesterday") == wall_of(None) == 0


# -- ours ------------------------------------------------------------------------------------------


def test_a_grant_is_written_as_other_electors_read_it() -> None:
    lease = taken(seen(None), ask=Ask(14.2, "host-1"))
    assert lease["spec"] == {
        "holderIdentity": "host-1",
        "leaseDurationSeconds": 15,
        "acquireTime": micro_time(WALL),
        "renewTime": micro_time(WALL),
        "leaseTransitions": 1,
    }
    assert lease["metadata"]["annotations"][KEY] == "default/job"


def test_a_lease_ends_once_it_was_seen_for_its_ttl_whatever_the_wall_clocks_say() -> None:
    lease = taken(seen(None))
    for wall in (WALL - 86_400 * SECOND, WALL + 86_400 * SECOND):
        assert holders(seen(lease, wall).record, seen(lease, wall).now)
        later = seen(lease, wall, 14.9)
        assert holders(later.record, later.now)
        over = seen(lease, wall, 15.2)
        assert not holders(over.record, over.now)


def test_whoever_looks_may_have_a_clock_that_runs_faster() -> None:
    later = seen(taken(seen(None)), passed=15.1)
    assert holders(later.record, later.now)


def test_the_records_clock_goes_on_with_every_write() -> None:
    held = seen(taken(seen(None)), passed=10.0)
    joined = seen(swapped(held, held.record._replace(changes=9)), passed=5.2)
    assert not holders(joined.record, joined.now)


def test_a_renewal_keeps_when_it_was_taken_and_a_free_lease_has_no_holder() -> None:
    held = seen(taken(seen(None)))
    grant = held.record.grants[0]
    renewal = Renewal(JOB, grant.claim, grant.token, 15.0, "e")
    moment = Moment(held.now, WALL + SECOND, epoch="e")
    outcome, record, *_ = keeping.renew(held.record, renewal, moment)
    assert outcome == Renewed()
    renewed = swapped(held, record, wall=WALL + SECOND)
    assert renewed["spec"]["acquireTime"] == micro_time(WALL)
    assert renewed["spec"]["renewTime"] == micro_time(WALL + SECOND)
    assert renewed["spec"]["leaseTransitions"] == 1
    now = seen(renewed)
    _, given, *_ = keeping.give(now.record, grant.claim, grant.token, moment)
    free = swapped(now, given)
    assert free["spec"]["holderIdentity"] == ""
    assert free["spec"]["leaseDurationSeconds"] == 1


def test_a_slot_ends_by_the_servers_clock_and_the_most_that_such_clocks_differ() -> None:
    at = seen(None)
    outcome, record, _, entries = taking.take(
        at.record, "c1", Ask(15.0, "h"), Moment(at.now, WALL, epoch="e")
    )
    assert isinstance(outcome, Granted)
    assert record is not None
    grant = record.grants[0]._replace(expires=at.now + 3600 * SECOND)
    lease = swapped(at, record, *entries, Entry("slot", "today", grant))
    for wall, used in ((WALL + 3600 * SECOND, True), (WALL + 3601 * SECOND + SKEW, False)):
        there = seen(lease, wall)
        use = there.use_of("today")
        assert use is not None
        assert (use.expires > there.now) is used


def test_a_record_that_is_too_large_is_refused_before_it_is_sent() -> None:
    at = seen(None)
    entry = Entry("field", "large", Field(b"x" * 200_000, 1))
    error = lease_with(Swap(Wanted(JOB), at, NOTHING, (entry,)), "ns", WALL, 1)
    assert isinstance(error, StoreUnavailable)
    assert error.permanent
    assert "a Lease has room for 250,000" in str(error)


# -- others' ---------------------------------------------------------------------------------------


def test_another_elector_is_believed_for_its_duration_from_first_sight() -> None:
    lease = of_other()
    (other,) = holders(seen(lease).record, seen(lease).now)
    assert (other.holder, other.token) == ("go", 0)
    later, over = seen(lease, passed=15.1), seen(lease, passed=15.2)
    assert holders(later.record, later.now)
    assert not holders(over.record, over.now)


def test_another_elector_is_believed_for_a_day_at_most() -> None:
    over = seen(of_other(seconds=2_000_000_000), passed=87_300.0)
    assert not holders(over.record, over.now)


def test_an_empty_identity_is_free_at_once() -> None:
    free = seen(of_other(holder=""))
    assert not holders(free.record, free.now)


def test_who_joins_does_not_prolong_what_another_elector_holds() -> None:
    lease = of_other()
    lease["metadata"]["uid"] = "u"
    held = seen(lease, passed=10.0)
    joined = seen(swapped(held, held.record._replace(given_up=())), passed=5.2)
    assert not holders(joined.record, joined.now)
    again = seen(swapped(held, held.record), passed=4.0)
    assert [it.holder for it in holders(again.record, again.now)] == ["go"]


def test_a_holder_whose_lease_another_elector_took_has_lost_it() -> None:
    lease = by_other(taken(seen(None)), holderIdentity="go", leaseTransitions=2)
    now = seen(lease)
    assert [it.holder for it in holders(now.record, now.now)] == ["go"]
    freed = seen(by_other(lease, holderIdentity=""))
    assert not holders(freed.record, freed.now)


@pytest.mark.parametrize(
    "edit",
    [
        {"holderIdentity": ""},
        {"holderIdentity": "me"},
        {"renewTime": None},
        {"leaseTransitions": 0},
    ],
)
def test_an_edited_lease_is_neither_renewed_nor_free(edit: dict[str, Any]) -> None:
    lease = taken(seen(None))
    mine = seen(lease).record.grants[0]
    now = seen(by_other(lease, **edit))
    assert "host-1" in [it.holder for it in holders(now.record, now.now)]
    renewal = Renewal(JOB, mine.claim, mine.token, 15.0, "e")
    outcome, *_ = keeping.renew(now.record, renewal, Moment(now.now, WALL, epoch="e"))
    assert not isinstance(outcome, Renewed)
    over = seen(by_other(lease, **edit), passed=15.2)
    assert not holders(over.record, over.now)


def test_what_ours_is_taken_over_again_is_written_with_one_transition_more() -> None:
    lease = by_other(taken(seen(None)), holderIdentity="", leaseTransitions=7)
    assert taken(seen(lease), "c2")["spec"]["leaseTransitions"] == 8


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"spec": {"strategy": "OldestEmulationVersion"}}, "has a strategy"),
        (
            {"metadata": {"ownerReferences": [{"kind": "Node", "name": "n1"}]}},
            "is owned by Node n1",
        ),
        ({"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}}, "is being deleted"),
        ({"metadata": {"annotations": {KEY: "default/other"}}}, "is that of default/other"),
        ({"metadata": {"annotations": {RECORD: "2 00000000 {}"}}}, "has format 2"),
        ({"metadata": {"annotations": {RECORD: "1 00000000 {}"}}}, "was cut short, or edited"),
        ({"metadata": {"annotations": {RECORD: "hello"}}}, "is not of incumbent"),
    ],
)
def test_what_is_strange_is_granted_to_nobody(change: dict[str, Any], why: str) -> None:
    lease = {"metadata": {"uid": "u"}, "spec": {}} | change
    with pytest.raises(StoreUnavailable, match=why) as caught:
        seen(lease)
    assert caught.value.permanent

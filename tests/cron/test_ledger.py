"""The ledger: what may follow what, what is kept, and what a record says of a slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.cron.judging import MISSED_AFTER, gaps, judge, known_until, retry_due
from incumbent.cron.ledger import (
    RUN,
    SLOT_KEEP,
    TRANSITIONS,
    IllegalTransition,
    SlotRecord,
    SlotState,
    decode,
    encode,
    known_slots,
    orphans,
    runs_of,
    surplus,
    transition,
)
from incumbent.cron.schedule import Every, slot_id
from incumbent.cron.spec import CatchUp, JobSlot, JobSpec
from incumbent.model import Field, Holding, Key, Record

NOW = 1_000_000_020.0
SPEC = JobSpec(name="job", schedule=Every(60), command=("true",))
DUE = 999_999_960.0
SLOT = JobSlot.at(DUE)


def record(
    runs: tuple[SlotRecord, ...] = (),
    holdings: tuple[Holding, ...] = (),
    slots: Mapping[str, float] | None = None,
    closed_for: float = 0.0,
    **fields: bytes,
) -> Record:
    written = {RUN + run.slot: Field(encode(run), at) for at, run in enumerate(runs)}
    others = {name: Field(value, 1) for name, value in fields.items()}
    return Record(Key("n", "job"), holdings, closed_for, {**written, **others}, slots or {})


def run(
    state: SlotState = SlotState.RUNNING, due: float = DUE, token: int = 7, **more: object
) -> SlotRecord:
    return replace(SlotRecord(slot_id(due), state, due, "i1", token, due), **more)  # type: ignore[arg-type]


# -- steps -----------------------------------------------------------------------------------------


def test_what_has_ended_stays_as_it_is() -> None:
    for state in SlotState:
        if state.ended:
            assert TRANSITIONS[state] == frozenset()
            with pytest.raises(IllegalTransition):
                transition(run(state), SlotState.OK)


def test_only_a_run_that_began_can_end_well() -> None:
    assert [state for state, then in TRANSITIONS.items() if SlotState.OK in then] == [
        SlotState.RUNNING
    ]


def test_every_state_can_be_reached() -> None:
    reached = {state for then in TRANSITIONS.values() for state in then}
    assert reached == set(SlotState)


TEXTS = st.text(max_size=30)


@given(
    state=st.sampled_from(SlotState),
    why=TEXTS,
    output=TEXTS,
    code=st.none() | st.integers(0, 255),
    count=st.integers(1, 9),
)
def test_a_record_is_read_back_as_it_was_written(
    state: SlotState, why: str, output: str, code: int | None, count: int
) -> None:
    it = run(state, why=why, output=output, code=code, count=count)
    assert decode(it.slot, encode(it)) == it


NOT_OURS = [
    *(b"", b"{}", b"[]", b"\xff", b'{"v":2,"state":"ok","due":1}', b'{"v":1,"state":"ok"}'),
    *(b'{"v":1,"state":"ok","due":%b}' % due for due in (b'"1"', b"null", b"[]", b"1e999", b"NaN")),
    b'{"v":1,"state":"ok","due":1,"started":"now"}',
    b'{"v":1,"state":"ok","due":1,"instance":[]}',
    b'{"v":1,"state":"ok","due":1,"count":1.5}',
]


@pytest.mark.parametrize("value", NOT_OURS)
def test_a_record_of_others_still_takes_its_slot(value: bytes) -> None:
    found = replace(record(), fields={RUN + SLOT.name: Field(value, 1)})
    assert decode(SLOT.name, value) is None
    assert SLOT.name in known_slots(found)
    assert judge(SPEC, found, [SLOT], NOW).claims == []


@pytest.mark.parametrize("value", NOT_OURS)
def test_a_record_of_others_hides_none_of_ours_and_is_not_removed(value: bytes) -> None:
    ours = [run(SlotState.OK, DUE - 1e6), run(SlotState.OK, DUE - 2e6)]
    fields = {**record(tuple(ours)).fields, RUN + SLOT.name: Field(value, 1)}
    known = runs_of(fields)
    assert list(known) == [SLOT.name, ours[1].slot, ours[0].slot]
    assert known[SLOT.name][0].why == "not readable"
    assert [it.slot for it, _ in surplus(known, 1, 1000, NOW)] == [ours[1].slot]


# -- what is kept ----------------------------------------------------------------------------------


def test_the_oldest_records_beyond_the_bounds_go_first() -> None:
    runs = [run(SlotState.OK, DUE + 60 * number) for number in range(5)]
    known = runs_of(record(tuple(runs)).fields)
    gone = [it.slot for it, _ in surplus(known, 3, 1e9, NOW)]
    assert sorted(gone) == [runs[0].slot, runs[1].slot]


def test_what_is_too_old_goes_and_the_newest_stays_however_old() -> None:
    runs = [run(SlotState.OK, DUE - 1e6), run(SlotState.OK, DUE - 2e6)]
    known = runs_of(record(tuple(runs)).fields)
    assert [it.due for it, _ in surplus(known, 100, 1000, NOW)] == [DUE - 2e6]


def test_a_run_that_goes_on_is_never_removed() -> None:
    runs = [run(SlotState.RUNNING, DUE - 1e6), run(SlotState.OK)]
    assert surplus(runs_of(record(tuple(runs)).fields), 1, 1000, NOW) == []


# -- what a record says ----------------------------------------------------------------------------


def holding(token: int = 7, meta: str = "", left: float = 9.0) -> Holding:
    return Holding("i1", token, left, meta=meta.encode())


def test_a_run_is_lost_once_its_token_no_longer_holds_the_lease() -> None:
    assert orphans(record((run(),), (holding(),))) == []
    assert [it.slot for it, _ in orphans(record((run(),), (holding(token=8),)))] == [SLOT.name]
    ((lost, version, why),) = judge(SPEC, record((run(),)), [SLOT], NOW).lost
    assert (lost.slot, version, why) == (SLOT.name, 0, "i1 vanished")


def test_who_sees_a_run_go_on_looks_again_when_its_lease_ends() -> None:
    found = judge(SPEC, record((run(),), (holding(left=4.0),)), [SLOT], NOW)
    assert [(round(delay), slot) for delay, slot in found.rechecks] == [(4, SLOT)]


def test_a_lost_run_is_retried_as_often_as_the_job_says() -> None:
    spec = replace(SPEC, retries=1)
    assert [it.name for it in judge(spec, record((run(),)), [], NOW).claims] == [SLOT.name + "#2"]
    assert judge(SPEC, record((run(),)), [], NOW).claims == []
    second = run(SlotState.LOST, attempt=2, slot=f"{SLOT.name}#2")
    assert judge(spec, record((second,)), [JobSlot(second.slot, DUE, 2)], NOW).claims == []


def test_a_lost_run_whose_lease_was_not_given_back_is_retried_when_that_ends() -> None:
    spec, lost = replace(SPEC, retries=1), run(SlotState.LOST)
    found = judge(spec, record((lost,), (holding(left=4.0),)), [SLOT], NOW)
    assert found.claims == []
    assert [(round(delay), slot) for delay, slot in found.rechecks] == [(4, SLOT)]
    assert [it.name for it in judge(spec, record((lost,)), [SLOT], NOW).claims] == [
        SLOT.name + "#2"
    ]


def test_a_retry_that_somebody_has_is_left_to_it() -> None:
    spec = replace(SPEC, retries=1)
    second = run(slot=f"{SLOT.name}#2", attempt=2, token=9)
    found = judge(spec, record((run(SlotState.LOST), second), (holding(9),)), [SLOT], NOW)
    assert found.claims == []


def test_who_witnessed_a_lost_run_witnesses_its_retries_too() -> None:
    spec, first = replace(SPEC, retries=2), run(SlotState.LOST)
    second = run(slot=f"{SLOT.name}#2", attempt=2, token=9)
    found = judge(spec, record((first, second), (holding(9, left=4.0),)), [SLOT], NOW)
    assert [(round(at), slot.name) for at, slot in found.rechecks] == [(4, second.slot)]
    lost = record((first, replace(second, state=SlotState.LOST)))
    assert [slot.name for slot in judge(spec, lost, [SLOT], NOW).claims] == [f"{SLOT.name}#3"]
    well = record((first, replace(second, state=SlotState.OK)))
    found = judge(spec, well, [SLOT], NOW)
    assert (found.claims, found.rechecks) == ([], [])


def test_a_retry_that_meets_a_newer_run_is_skipped_with_why_or_waits_as_the_job_says() -> None:
    held = record((run(SlotState.LOST),), (holding(9, meta="2001-01-01T00:00:00Z"),))
    retry = JobSlot(SLOT.name, DUE).next_attempt()
    (note,) = judge(SPEC, held, [retry], NOW).unrun
    assert (note.slot, note.state, note.attempt) == (f"{SLOT.name}#2", SlotState.SKIPPED, 2)
    assert note.why == "held by i1, which runs 2001-01-01T00:00:00Z"
    queued = judge(replace(SPEC, overlap="queue"), held, [retry], NOW)
    assert (queued.unrun, [slot.name for _, slot in queued.rechecks]) == ([], [retry.name])


def test_the_last_run_on_record_is_retried_if_nobody_saw_to_that() -> None:
    spec = replace(SPEC, retries=1)
    lost = record((run(SlotState.LOST),))
    assert retry_due(spec, lost, NOW) == SLOT
    assert retry_due(SPEC, lost, NOW) is None
    assert retry_due(spec, lost, NOW + 2 * spec.catch_up.window) is None
    newer = record((run(SlotState.LOST), run(SlotState.OK, due=DUE + 60)))
    assert retry_due(spec, newer, NOW) is None


def test_a_slot_that_was_claimed_and_never_begun_is_lost() -> None:
    early = record(slots={SLOT.name: SLOT_KEEP - 1})
    assert judge(SPEC, early, [SLOT], NOW).unrun == []
    late = record(slots={SLOT.name: SLOT_KEEP - 10})
    (note,) = judge(SPEC, late, [SLOT], NOW).unrun
    assert note.state is SlotState.LOST


def test_a_slot_of_a_paused_job_is_skipped_with_who_paused_it() -> None:
    paused = record(pause=b'{"who": "ann", "reason": "month end"}')
    (note,) = judge(SPEC, paused, [SLOT], NOW).unrun
    assert (note.state, note.why) == (SlotState.SKIPPED, "paused by ann (month end)")


def test_a_slot_that_meets_another_run_is_skipped_or_queued_as_the_job_says() -> None:
    held = record((), (holding(meta="2001-01-01T00:00:00Z"),))
    (note,) = judge(SPEC, held, [SLOT], NOW).unrun
    assert (note.state, note.why) == (
        SlotState.SKIPPED,
        "held by i1, which runs 2001-01-01T00:00:00Z",
    )
    queued = judge(replace(SPEC, overlap="queue"), held, [SLOT], NOW)
    assert (queued.unrun, [slot.name for _, slot in queued.rechecks]) == ([], [SLOT.name])


@pytest.mark.parametrize("meta", ["", "two\nlines", "x" * 60])
def test_why_names_nothing_that_a_stranger_wrote_beside_its_lease(meta: str) -> None:
    (note,) = judge(SPEC, record((), (holding(meta=meta),)), [SLOT], NOW).unrun
    assert note.why == "held by i1"


def test_nothing_is_missed_before_the_slowest_clock_has_had_its_turn() -> None:
    missed = replace(SLOT, only_check=True)
    early = judge(SPEC, record(), [missed], DUE + MISSED_AFTER - 10)
    assert (early.unrun, [round(delay) for delay, _ in early.rechecks]) == ([], [11])
    (note,) = judge(SPEC, record(), [missed], DUE + MISSED_AFTER).unrun
    assert note.state is SlotState.MISSED


def test_many_missed_slots_are_one_record_that_counts_them() -> None:
    slots = [JobSlot.at(DUE + 60 * number, only_check=True) for number in range(5)]
    (note,) = judge(SPEC, record(), slots, NOW + 10_000).unrun
    assert (note.count, note.first, note.due) == (5, DUE, DUE + 240)


def test_a_record_of_missed_slots_reaches_back_to_the_last_run() -> None:
    before = run(SlotState.OK, DUE - 600)
    (note,) = judge(SPEC, record((before,)), [JobSlot.at(DUE, only_check=True)], NOW + 1000).unrun
    assert (note.count, note.first) == (10, DUE - 540)


def test_what_the_ledger_has_forgotten_does_not_run_again() -> None:
    forgotten = record(pruned=f"[[{DUE},{DUE}]]".encode())
    assert judge(SPEC, forgotten, [SLOT], NOW).claims == []
    assert judge(SPEC, record(), [SLOT], NOW).claims == [SLOT]


def test_a_gap_between_two_records_is_found() -> None:
    facts = b'{"schedule":"every 1m","since":999999700}'
    spec = replace(SPEC, schedule=Every(60))
    runs = (run(SlotState.OK, DUE - 120), run(SlotState.OK, DUE))
    found = gaps(spec, record(runs, job=facts.replace(b"every 1m", b"every 1m")))
    assert [slot.due for slot in found] == [DUE - 240, DUE - 180, DUE - 60]
    assert all(slot.only_check for slot in found)


def test_a_slot_that_was_claimed_and_never_begun_is_found_at_the_next_start() -> None:
    """Its instance and its worker ended together: nobody is left who was refused it."""
    facts = b'{"schedule":"every 1m","since":999999800}'
    runs = (run(SlotState.OK, DUE - 120), run(SlotState.OK, DUE))
    claimed = record(runs, slots={slot_id(DUE - 60): SLOT_KEEP - 60}, job=facts)
    (found,) = gaps(SPEC, claimed)
    assert found.due == DUE - 60
    assert [note.state for note in judge(SPEC, claimed, [found], NOW).unrun] == [SlotState.LOST]


@pytest.mark.parametrize("since", [b"null", b'"today"'])
def test_a_record_that_does_not_say_since_when_is_no_reason_to_fail(since: bytes) -> None:
    facts = b'{"schedule":"every 1m","since":%b}' % since
    spec = replace(SPEC, schedule=Every(60))
    runs = (run(SlotState.OK, DUE - 120), run(SlotState.OK, DUE))
    assert DUE - 60 in [slot.due for slot in gaps(spec, record(runs, job=facts))]


def test_a_gap_of_a_job_that_runs_each_second_is_found_half_an_hour_later() -> None:
    spec = replace(SPEC, schedule=Every(1), keep_runs=5000)
    began = DUE - 1000
    facts = f'{{"schedule": "every 1s", "since": {began}}}'.encode()
    gap = began + 300
    runs = [run(SlotState.OK, due=began + at) for at in range(1, 1000) if began + at != gap]
    assert [slot.due for slot in gaps(spec, record(tuple(runs), job=facts))] == [gap]


def test_a_job_whose_schedule_changed_begins_now() -> None:
    facts = b'{"schedule":"every 2m","since":1}'
    assert known_until(SPEC, record((run(SlotState.OK),), job=facts)) is None


def test_a_job_on_record_that_says_neither_since_nor_a_run_begins_now() -> None:
    assert known_until(SPEC, record(job=b'{"schedule":"every 1m"}')) is None


def test_catching_up_comes_after_what_is_on_record() -> None:
    facts = b'{"schedule":"every 1m","since":1}'
    spec = replace(SPEC, catch_up=CatchUp("last"))
    assert known_until(spec, record((run(SlotState.OK),), job=facts)) == DUE

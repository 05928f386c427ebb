"""A suite that never fails proves nothing: each planted bug is caught by the case named for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from incumbent.model import Capabilities
from incumbent.stores.memory import MemoryTable
from incumbent.testing.contract import Bench, StoreContract, waits
from incumbent.testing.contract.bench import DRIVERS
from tests.contract import mutants as bugs
from tests.contract import mutants_of_elections as more
from tests.contract import mutants_of_late_takes as late
from tests.contract import mutants_of_lines as lines
from tests.contract import mutants_of_sharing as sharing
from tests.contract.planted import Planted
from tests.contract.worlds import FaultyMemoryStore, MemoryWorld

CAUGHT_BY: list[tuple[type[MemoryTable], str]] = [
    (bugs.ReleasesWithoutCompare, "a_stranger_cannot_release"),
    (bugs.ReleaseIgnoresToken, "a_break_that_comes_too_late_spares_the_next_holder"),
    (bugs.ReleaseOfNothingIsReleased, "a_release_of_what_was_removed_says_so"),
    (
        bugs.ReleaseOfNothingIsReleased,
        "a_release_of_what_was_removed_says_so_while_another_holds_it",
    ),
    (bugs.ReleaseForgetsToClose, "a_release_can_keep_the_name_closed"),
    (bugs.ReleaseIsSilent, "a_release_before_the_wait_is_not_missed"),
    (bugs.SlotNotCompared, "nobody_else_can_give_a_slot_back"),
    (bugs.SlotDiesWithItsLease, "a_slot_outlives_a_holder_that_died"),
    (bugs.RefusalClaimsTheSlot, "a_refused_take_claims_no_slot"),
    (bugs.RenewalRecreates, "a_renewal_after_the_end_brings_nothing_back"),
    (bugs.RenewalRecreates, "a_renewal_never_creates_a_lease"),
    (bugs.RenewalShortens, "a_renewal_never_shortens_the_ttl"),
    (bugs.RenewalWithoutCompare, "a_stranger_cannot_renew"),
    (bugs.RenewalIgnoresToken, "a_renewal_with_another_token_is_refused"),
    (bugs.RenewalOutlivesRestart, "a_restart_ends_what_was_believed"),
    (bugs.RepeatKeepsTheOldTtl, "a_repeated_take_raises_the_ttl_to_what_it_asks"),
    (bugs.RepeatKeepsTheOldTtl, "a_repeat_after_a_lost_answer_raises_the_ttl"),
    (bugs.RepeatShortens, "a_repeated_take_never_shortens_the_ttl"),
    (bugs.RepeatIsRefused, "a_take_whose_answer_was_lost_is_the_same_grant_again"),
    (bugs.RepeatIsANewGrant, "a_repeated_take_is_the_same_grant"),
    (bugs.TokenRestarts, "the_token_grows_over_a_wipe"),
    (bugs.TokenStandsStill, "the_token_grows_with_every_release"),
    (bugs.EchoesNothing, "a_free_lease_is_granted_and_echoes_its_claim"),
    (bugs.GrantsToAll, "a_refusal_says_who_holds_the_lease_and_for_how_long"),
    (bugs.NeverExpires, "a_lease_ends_with_its_ttl"),
    (bugs.RoundsTheTtlDown, "a_ttl_between_two_units_is_rounded_up"),
    (bugs.TakeIgnoresPause, "a_paused_name_is_granted_to_nobody"),
    (bugs.RestartWaitIgnored, "a_store_that_lost_its_data_grants_nothing_for_one_ttl"),
    (bugs.RestartWaitIgnored, "a_store_that_kept_its_data_grants_nothing_for_one_ttl"),
    (bugs.RenewalOutlivesRestart, "a_failover_ends_what_was_believed"),
    (bugs.RestartWaitIgnored, "a_server_that_took_over_grants_nothing_for_one_ttl"),
    (bugs.KeepsFewFields, "three_hundred_fields_are_all_kept_beside_a_lease"),
    (bugs.RestartRefusesInsteadOfSaying, "a_store_that_lost_its_data_grants_nothing_for_one_ttl"),
    (bugs.ResignHitsTheNextHolder, "a_resign_notice_that_comes_too_late_hits_nobody"),
    (bugs.PauseIsNoNotice, "the_holder_is_told_of_a_pause"),
    (bugs.PutIgnoresItsGuard, "a_version_guards_against_a_lost_update"),
    (bugs.PutByClaimAfterTheEnd, "who_lost_the_lease_cannot_write_by_its_claim"),
    (bugs.VersionsComeBack, "a_version_never_comes_back"),
    (bugs.HistoryWithoutEnd, "the_history_names_holders_and_ends_in_order"),
    (bugs.NamesCollide, "names_that_look_alike_are_different_leases"),
    (bugs.ScanLeavesItsNamespace, "a_scan_stays_in_its_namespace"),
    (bugs.ReadCreates, "reading_creates_nothing"),
    (more.CandidateNeverExpires, "a_candidacy_ends_when_its_time_is_over"),
    (more.CandidateStaysWhenGranted, "a_grant_ends_the_own_candidacy_only"),
    (more.CandidateIsAChange, "a_candidate_is_no_change"),
    (more.ReservationAdmitsEverybody, "a_reservation_refuses_everybody_else"),
    (more.ReservationAdmitsNobody, "a_grant_ends_the_reservation"),
    (more.ReservationNeverEnds, "a_reservation_ends_when_its_time_is_over"),
    (more.ReservationOutlivesItsGrant, "a_grant_ends_the_reservation"),
    (more.MetaChangeUnseen, "another_meta_before_the_wait_is_not_missed"),
    (more.EveryRenewalIsAChange, "a_renewal_that_changes_nothing_is_no_change"),
    (more.PauseEndsByItself, "a_pause_does_not_end_with_the_record"),
    (more.PauseDiesWithTheStore, "a_pause_survives_a_restart"),
    (late.LateTakeIsGranted, "a_take_that_arrives_after_its_claim_was_given_up_brings_nothing"),
    (late.LateIsForgottenAfterATtl, "it_brings_nothing_after_a_ttl_either"),
    (
        late.OnlyTheUnknownIsGivenUp,
        "a_second_take_of_a_claim_that_was_granted_and_given_up_brings_nothing",
    ),
    (
        late.OnlyTheUnknownIsGivenUp,
        "a_second_take_of_a_claim_that_nobody_heard_of_brings_nothing",
    ),
    (late.LateTakeUsesItsSlot, "a_take_that_arrives_too_late_uses_no_slot"),
    (late.LateTakeStandsInLine, "a_take_that_arrives_too_late_stands_in_no_line"),
    (late.EverybodyIsLate, "others_are_granted_meanwhile_and_keep_what_they_have"),
    (lines.LastComesFirst, "who_waits_stands_in_line_in_the_order_of_arrival"),
    (lines.WhoAsksAgainGoesToTheEnd, "who_asks_again_keeps_its_place"),
    (lines.OvertakenForEver, "an_unfair_waiter_is_overtaken_a_few_times_at_most"),
    (lines.NeverOvertaken, "an_unfair_waiter_is_overtaken_a_few_times_at_most"),
    (lines.CountsOvertakingOn, "a_grant_in_turn_begins_the_count_anew"),
    (lines.WaitsForTheSilent, "a_silent_first_has_its_turn_no_longer_than_its_heartbeat"),
    (lines.StaysInLineWhenGranted, "who_was_granted_stands_in_line_no_more"),
    (lines.NeverLeavesTheLine, "who_leaves_the_line_is_not_waited_for"),
    (
        lines.WhoLeavesIsGivenUp,
        "who_leaves_without_having_been_granted_is_not_waited_for_and_may_come_again",
    ),
    (lines.NoTurnAfterACrash, "the_first_has_its_turn_also_when_the_holder_died"),
    (lines.FairnessIsForgotten, "nobody_comes_before_one_that_asked_for_fairness"),
    (lines.EverybodyStandsInLine, "who_tries_once_stands_in_no_line"),
    (lines.WaitingIsAChange, "waiting_is_no_change"),
    (lines.TheLineComesBeforeASuccessor, "a_successor_comes_before_the_line"),
    (lines.LeavingIsSilent, "who_leaves_when_its_turn_has_come_passes_it_on"),
    (lines.RepeatStandsInLine, "the_holder_repeats_its_take_whoever_waits"),
    (
        sharing.OneMoreThanThereArePermits,
        "as_many_hold_it_as_there_are_permits_and_no_more",
    ),
    (
        sharing.WriterComesBesideReaders,
        "readers_keep_a_writer_out_and_a_writer_keeps_readers_out",
    ),
    (
        sharing.ReaderComesBesideAWriter,
        "readers_keep_a_writer_out_and_a_writer_keeps_readers_out",
    ),
    (sharing.AnyNumberOfPermits, "another_number_of_permits_is_refused_with_the_one_in_use"),
    (sharing.ThoseWhoShareHaveOneToken, "each_holder_has_a_token_of_its_own_that_grows"),
    (sharing.FirstToLeaveEndsItForAll, "who_left_is_gone_while_others_hold_it"),
    (sharing.LastToComeSaysWhenItEnds, "each_ends_with_its_own_ttl"),
    (sharing.ReadersPassAWriter, "readers_who_come_later_let_a_writer_pass"),
]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter that is never told is what some bugs make: nobody has to sit it out here."""
    monkeypatch.setattr(waits, "PATIENCE", 1.0)
    monkeypatch.setattr(waits, "HINTED_WITHIN", 0.6)


@contextmanager
def _bench(table: MemoryTable, driver: str) -> Iterator[Bench]:
    bench = Bench(MemoryWorld(FaultyMemoryStore(table)), DRIVERS[driver], ttl=10.5)
    try:
        yield bench
    finally:
        bench.close()


def _run(case: str, bench: Bench) -> None:
    getattr(StoreContract(), f"test_{case}")(bench)


@pytest.mark.parametrize(("bug", "case"), CAUGHT_BY)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_planted_bug_is_caught(bug: type[MemoryTable], case: str, driver: str) -> None:
    with _bench(MemoryTable(), driver) as bench:
        _run(case, bench)
    with _bench(bug(), driver) as bench, pytest.raises((AssertionError, pytest.fail.Exception)):
        _run(case, bench)


def test_every_planted_bug_has_a_case() -> None:
    planted = {
        it
        for module in (bugs, late, more, lines, sharing)
        for it in vars(module).values()
        if isinstance(it, type) and issubclass(it, MemoryTable) and it.__name__[0] != "_"
    }
    assert planted - {MemoryTable, Planted} == {bug for bug, _ in CAUGHT_BY}


class _Poor(StoreContract):
    capabilities = Capabilities(fields=False, slots=False, notices=False, fencing=False)


class _Dear(StoreContract):
    hooks = frozenset({"wipe"})
    only = frozenset({"wipe"})


def _cases(suite: type[StoreContract]) -> set[str]:
    return {name for name in dir(suite) if name.startswith("test_") and getattr(suite, name)}


def test_what_a_store_does_not_declare_is_not_generated() -> None:
    cases = _cases(_Poor)
    assert "test_a_field_can_be_read_back" not in cases
    assert "test_the_token_grows_over_a_wipe" not in cases
    assert "test_contenders_take_turns_and_never_overlap" in cases


def test_a_class_in_between_takes_no_cases_away() -> None:
    class Between(StoreContract):
        pass

    class Rich(Between):
        capabilities = Capabilities(queue=True)
        test_a_fair_line_is_served_in_the_order_of_arrival = None  # type: ignore[assignment]

    case = "test_who_asks_again_keeps_its_place"
    assert case not in _cases(Between)
    assert case in _cases(Rich)
    assert "test_a_fair_line_is_served_in_the_order_of_arrival" not in _cases(Rich)


def test_a_suite_can_be_narrowed_to_the_cases_of_a_hook() -> None:
    cases = _cases(_Dear)
    assert "test_the_token_grows_over_a_wipe" in cases
    assert "test_contenders_take_turns_and_never_overlap" not in cases


def test_an_engine_that_contradicts_the_class_fails() -> None:
    with _bench(MemoryTable(), "blocking") as bench, pytest.raises(AssertionError):
        _Poor().test_the_engine_is_as_the_class_declares(bench)

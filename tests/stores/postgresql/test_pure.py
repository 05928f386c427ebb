"""What is decided about PostgreSQL without one: requests, answers, errors, findings."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from incumbent.errors import ConfigError, OutcomeUnknown, StoreUnavailable
from incumbent.model import (
    ABSENT,
    Ask,
    ByClaim,
    ByVersion,
    Gone,
    Granted,
    Key,
    Parting,
    Refused,
    Renewal,
    Renewed,
    Slot,
    TakeOutcome,
)
from incumbent.net.pool import Broken, Mismatch, exchange_error, still_in_doubt
from incumbent.rules.columns import columns_of
from incumbent.rules.record import NOTHING, Grant, LastGrant, LeaseRecord, after, dated
from incumbent.stores.base import Take
from incumbent.stores.plan import Plan
from incumbent.stores.postgresql.dialect import PostgresDialect
from incumbent.stores.postgresql.doctor import findings
from incumbent.stores.postgresql.errors import (
    PostgresErrorReply,
    answered_error,
    check_schema,
    check_server,
    connect_error,
)

T = TypeVar("T")

KEY = Key("space", "job")
CLAIM = "c" * 32
DIALECT = PostgresDialect("here", None)


def requests_of(plan: Plan[Any, Any], *replies: bytes | None, ahead: float = 0.0) -> list[Any]:
    """The parameters of the plan's requests, of which all but the last one get a reply."""
    program = DIALECT.translated(plan, ahead, 5.0)
    return [next(program).parameters, *(program.send(reply).parameters for reply in replies)]


def outcome_of(plan: Plan[Any, T], *replies: bytes | None) -> T:
    """What the plan makes of these replies."""
    program = DIALECT.translated(plan, 0.0, 5.0)
    next(program)
    for reply in replies[:-1]:
        program.send(reply)
    with pytest.raises(StopIteration) as end:
        program.send(replies[-1])
    outcome: T = end.value.value
    return outcome


def taken(reply: bytes | None, claim: str = CLAIM) -> TakeOutcome:
    return outcome_of(DIALECT.take(KEY, claim, Ask(1, "me")), reply)


def said(*rows: tuple[str, LeaseRecord], **change: Any) -> bytes:
    """What the server says that it has of some names, written at 1 s; it is 2 s."""
    shown = []
    for name, record in rows:
        columns = columns_of(dated(record, 1_000_000))
        values = columns._replace(meta=columns.meta.hex(), rest=columns.rest.decode())  # type: ignore[arg-type]
        line = record.line.lapses_at, record.line.overtaken
        shown.append([name, 7, 1_000_000, values, *line, None, None, None])
    epoch = ["1.epoch", 100.0, 15_000_000]
    found = {"now": 2_000_000, "epoch": epoch, "floor": 0, "highest": 5, "rows": shown}
    return json.dumps(found | change).encode()


def held_by(claim: str) -> LeaseRecord:
    grant = Grant(claim, "b", 5, 2_000_000, after(0), after(1_500_000), b"\x00\xff")
    return NOTHING._replace(
        token=5, granted=1, changes=1, grants=(grant,), last=LastGrant("b", 5, 1_000_000)
    )


# -- requests and answers


def test_a_take_rounds_its_times_up_and_names_its_end() -> None:
    ask = Ask(1.0000001, "me", meta=b"\x00\xff")
    assert requests_of(DIALECT.take(KEY, CLAIM, ask), ahead=2.5) == [(
        b"space/job", CLAIM.encode(), b"1000001", b"me", b"\\x00ff", b"86400000000", None,
        b"7500000", b"f",
    )]  # fmt: skip


def test_a_restart_wait_of_nothing_is_said_and_none_is_left_to_the_server() -> None:
    waits = []
    for wait in (0, 2):
        dialect = PostgresDialect("here", wait)
        program = dialect.translated(dialect.take(KEY, CLAIM, Ask(1, "me")), 0.0, 5.0)
        waits.append(next(program).parameters[6])
    assert waits == [b"0", b"2000000"]


def test_a_grant_must_echo_its_claim() -> None:
    granted = f"granted {CLAIM} 7 1500000 1.epoch".encode()
    assert taken(granted) == Granted(CLAIM, 7, 1.5, "1.epoch")
    with pytest.raises(Mismatch):
        taken(granted, "d" * 32)
    for strange in (None, b"", b"granted", b"[]", b'{"now": 5}', b"7"):
        with pytest.raises(Mismatch):
            taken(strange)


def test_an_answer_about_other_names_is_not_believed() -> None:
    with pytest.raises(Mismatch, match="other names"):
        taken(said(("space/other", held_by("x"))))


def test_a_take_that_came_too_late_was_not_carried_out() -> None:
    with pytest.raises(Broken) as caught:
        taken(f"late {CLAIM}".encode())
    assert not caught.value.sent
    with pytest.raises(Mismatch):
        taken(f"late {'d' * 32}".encode())


def test_only_a_take_may_not_be_repeated_without_its_caller() -> None:
    assert not DIALECT.take(KEY, CLAIM, Ask(1, "me")).repeatable
    assert DIALECT.give(KEY, CLAIM, None).repeatable
    guards = (None, ABSENT, ByVersion(3), ByClaim("c", 4))
    repeatable = [DIALECT.put(KEY, "f", None, guard).repeatable for guard in guards]
    assert repeatable == [True, False, False, True]


def test_a_young_store_is_unavailable_for_as_long_as_it_says() -> None:
    with pytest.raises(StoreUnavailable, match="restart_wait") as caught:
        taken(said(epoch=["1.epoch", 0.5, 20_000_000]))
    assert caught.value.retry_after == 19.5


def test_a_refusal_says_who_holds() -> None:
    refused = taken(said(("space/job", held_by("x"))))
    assert isinstance(refused, Refused)
    (shown,) = refused.holders
    assert (shown.holder, shown.ttl, shown.held_for, shown.meta) == ("b", 2.0, 1.0, b"\x00\xff")
    assert (refused.reason, refused.retry_after, refused.seen) == ("held", 0.5, "1.epoch:1")


def test_a_swap_names_the_version_the_epoch_and_the_clock_by_which_it_was_decided() -> None:
    plan = DIALECT.put(KEY, "f", b"x", None)
    _, (written, durable, _) = requests_of(plan, said(("space/job", held_by("x"))))
    (swap,) = json.loads(written)
    shown = [swap[name] for name in ("key", "version", "epoch", "not_before", "kinds", "names")]
    assert shown == ["space/job", 7, "1.epoch", 2_000_000, ["field"], ["f"]]
    assert durable == b"t"


@pytest.mark.parametrize(
    ("plan", "durable"),
    [
        (DIALECT.take(KEY, CLAIM, Ask(1, "me", slot=Slot("today", 60.0))), b"t"),
        (DIALECT.take(KEY, CLAIM, Ask(1, "me", candidacy=1.0)), b"f"),
        (DIALECT.give(KEY, CLAIM, None), b"f"),
        (DIALECT.give(KEY, CLAIM, None, Parting(closed_for=1.0)), b"f"),
        (DIALECT.put(KEY, "pause", b"", None), b"t"),
    ],
)
def test_only_what_outlives_a_crash_waits_for_the_disk(
    plan: Plan[Any, Any], durable: bytes
) -> None:
    _, (_, waits, _) = requests_of(plan, said())
    assert waits == durable


def test_a_closing_waits_for_the_disk() -> None:
    plan = DIALECT.give(KEY, CLAIM, 5, Parting(closed_for=1.0))
    _, (_, waits, _) = requests_of(plan, said(("space/job", held_by(CLAIM))))
    assert waits == b"t"


def test_a_server_whose_clock_stepped_back_writes_nothing() -> None:
    plan = DIALECT.put(KEY, "f", b"x", None)
    with pytest.raises(StoreUnavailable, match=r"stepped back by 0\.250 s"):
        now = json.loads(said(now=1_750_000))
        outcome_of(plan, said(), json.dumps([["space/job", now]]).encode())


def test_renewals_go_by_epoch_and_in_batches() -> None:
    asked = [Renewal(KEY, CLAIM, 1, 1.0, epoch) for epoch in ("a", "b", "a")]
    plan = DIALECT.renew(asked)
    done = f"{CLAIM} [1]".encode()
    assert [(each[0], each[3]) for each in requests_of(plan, done)] == [
        (b"a", b"{1,1}"),
        (b"b", b"{1}"),
    ]
    # The last one may have a record that says more.
    assert outcome_of(plan, done, done, said()) == [Renewed(), Renewed(), Gone("store_restarted")]
    many = requests_of(DIALECT.renew([asked[0]] * 1001), done, done)
    assert [each[3].count(b"1") for each in many] == [500, 500, 1]


def test_a_scan_goes_on_after_the_last_record_until_nothing_is_left() -> None:
    plan, found = DIALECT.scan("space", "j"), said(("space/job", held_by("x")))
    assert requests_of(plan, found) == [
        (b"space/j", b"", b"200"),
        (b"space/j", b"space/job", b"200"),
    ]
    assert [each.key for each in outcome_of(plan, found, said())] == [KEY]


def test_a_batch_of_renewals_is_quoted_as_arrays() -> None:
    asked = [Renewal(KEY, 'a"\\', 1, 1.0, "e"), Renewal(KEY, CLAIM, 2, 1.5, "e")]
    assert requests_of(DIALECT.renew(asked)) == [(
        b"e", b'{"space/job","space/job"}', b'{"a\\"\\\\","%b"}' % CLAIM.encode(), b"{1,2}",
        b"{1000000,1500000}",
    )]  # fmt: skip


def test_an_answer_to_other_renewals_is_not_believed() -> None:
    with pytest.raises(Mismatch):
        outcome_of(DIALECT.renew([Renewal(KEY, CLAIM, 1, 1.0, "e")]), b"other []")


def test_a_give_must_echo_its_claim() -> None:
    with pytest.raises(Mismatch):
        outcome_of(DIALECT.give(KEY, CLAIM, 7), b"released other")


def test_a_text_that_libpq_would_cut_is_refused() -> None:
    for ask in (Ask(1.0, "me\0you"), Ask(1.0, "me\0you", candidacy=1.0)):
        with pytest.raises(ConfigError, match="NUL"):
            requests_of(DIALECT.take(KEY, CLAIM, ask), said())


def test_what_only_reads_was_never_carried_out() -> None:
    program = DIALECT.translated(DIALECT.put(KEY, "f", b"x", None), 0.0, 5.0)
    next(program)
    with pytest.raises(Broken) as caught:
        program.throw(Broken("no answer", sent=True))
    assert not caught.value.sent


@pytest.mark.parametrize(
    ("error", "raised"),
    [(Broken("no answer", sent=False), Broken), (PostgresErrorReply("55P03", "x"), OutcomeUnknown)],
)
def test_an_error_after_a_part_was_done_leaves_the_outcome_open(
    error: Exception, raised: type[Exception]
) -> None:
    takes = [Take(Key("space", name), CLAIM, Ask(1.0, "me")) for name in ("a", "b")]
    program = DIALECT.translated(DIALECT.take_all(takes), 0.0, 5.0)
    next(program)
    program.send(said())
    program.send(json.dumps([["space/a", None, 8, 9], ["space/b", json.loads(said())]]).encode())
    with pytest.raises(raised) as caught:
        program.throw(error)
    assert getattr(caught.value, "sent", True)


# -- errors


@pytest.mark.parametrize(
    ("code", "final", "said"),
    [
        ("42501", True, "GRANT"),
        ("3F000", True, "doctor --fix"),
        ("42883", True, "doctor --fix"),
        ("42P01", True, "doctor --fix"),
        ("25006", False, "primary"),
        ("57014", False, "statement_timeout"),
        ("55P03", False, "locked"),
        ("40001", False, "conflicted"),
        ("40P01", False, "deadlock"),
        ("53100", False, "disk"),
        ("99999", False, "log"),
    ],
)
def test_an_answered_error_was_rolled_back(code: str, final: bool, said: str) -> None:
    error = answered_error(PostgresErrorReply(code, "words"), "here", served=False)
    assert isinstance(error, StoreUnavailable)
    assert (error.permanent, said in str(error), code in str(error)) == (final, True, True)
    assert not answered_error(PostgresErrorReply(code, "words"), "here", served=True).permanent


def test_an_error_inside_the_server_leaves_it_open() -> None:
    assert isinstance(answered_error(PostgresErrorReply("XX000", "words"), "here"), OutcomeUnknown)


@pytest.mark.parametrize(
    ("said", "final"),
    [
        ('FATAL: password authentication failed for user "me"', True),
        ('FATAL: database "x" does not exist', True),
        ('FATAL: role "x" does not exist', True),
        ('FATAL: no pg_hba.conf entry for host "1.2.3.4"', True),
        ("SSL error: certificate verify failed", True),
        ('server certificate for "a" does not match host name "b"', True),
        ("server does not support SSL, but SSL was required", True),
        ("FATAL: sorry, too many clients already", False),
        ("FATAL: the database system is starting up", False),
        ("session is read-only", False),
        ("server is in hot standby mode", False),
        ("Connection refused", False),
    ],
)
def test_a_refused_connection_is_final_only_where_somebody_must_change_something(
    said: str, final: bool
) -> None:
    assert connect_error(said, "here", served=False).permanent == final
    assert not connect_error(said, "here", served=True).permanent


def test_what_was_not_sent_is_unavailable_and_the_rest_is_open() -> None:
    assert isinstance(exchange_error(Broken("x", sent=False), "here"), StoreUnavailable)
    assert isinstance(exchange_error(Broken("x", sent=True), "here"), OutcomeUnknown)
    assert isinstance(exchange_error(Mismatch("x"), "here"), OutcomeUnknown)
    assert isinstance(still_in_doubt(StoreUnavailable("x"), "here"), OutcomeUnknown)


# -- what a server says of itself


@pytest.mark.parametrize("found", [None, 0, 2])
def test_only_a_schema_of_our_format_is_used(found: Any) -> None:
    check_schema({"format": 1}, "here", served=False)
    with pytest.raises(StoreUnavailable, match=f"has format {found}, ") as caught:
        check_schema({"format": found}, "here", served=False)
    assert caught.value.permanent


GOOD = {
    "version": "15.4", "user": "app", "standby": False, "read_only": "off", "fsync": "on",
    "commit": "on", "standbys": "", "replicas": 0, "asynchronous": 0, "timeout": 0, "most": 100,
    "used": 7, "encoding": "UTF8", "pid": 42, "wall": 1000.0,
}  # fmt: skip


def levels(
    change: dict[str, Any],
    trip: float = 0.001,
    up: float = 100.0,
    ttl: float = 15.0,
    named: bool = False,
) -> list[str]:
    wire: Any = SimpleNamespace(version=150004, backend=42, encrypted=True)
    hello = {"format": 1, "up": up, "longest": 0}
    wait = 15.0 if named else None
    found = findings(GOOD | change, hello, wire, ttl, wait, trip, wall=1000.2)
    return [f"{level}: {what}" for level, what, _ in found if level != "ok"]


def test_a_good_server_has_nothing_to_settle() -> None:
    assert levels({}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"standby": True}, "error: it is read-only"),
        ({"read_only": "on"}, "error: it is read-only"),
        ({"pid": 43}, "warning: a pooler"),
        ({"fsync": "off"}, "warning: fsync off"),
        ({"replicas": 2}, "warning: 2 asynchronous standbys"),
        ({"replicas": 2, "standbys": "*", "commit": "local"}, "warning: 2 asynchronous standbys"),
        ({"replicas": 2, "standbys": "b", "asynchronous": 1}, "warning: 1 asynchronous standbys"),
        ({"commit": "off"}, "warning: fsync on, synchronous_commit off"),
        ({"timeout": 100}, "warning: statement_timeout"),
        ({"used": 99}, "warning: 99 of 100"),
        ({"encoding": "LATIN1"}, "warning: encoding LATIN1"),
        ({"wall": 990.0}, "warning: its clock"),
    ],
)
def test_a_diagnosis_names_what_is_wrong(change: dict[str, Any], said: str) -> None:
    (found,) = levels(change)
    assert found.startswith(said)


def test_a_diagnosis_knows_slow_networks_and_young_stores() -> None:
    assert "round trip" in levels({}, trip=1.0)[0]
    assert "grants nothing yet" in levels({}, up=3.0)[0]


def test_a_diagnosis_knows_what_a_crash_may_hide() -> None:
    assert "ttl of 40s is unknown then" in levels({}, ttl=40.0)[0]
    assert levels({}, ttl=40.0, named=True) == []
    assert levels({"replicas": 1, "standbys": "*"}) == []


def test_a_server_that_is_too_old_is_said_for_good() -> None:
    check_server(130_000, "here", served=False)
    with pytest.raises(StoreUnavailable, match="PostgreSQL 12") as caught:
        check_server(120_022, "here", served=False)
    assert caught.value.permanent

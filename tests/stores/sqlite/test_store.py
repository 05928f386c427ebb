"""`sqlite:` with a real file and a host whose clocks, boots and files are in the test's hands."""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import (
    ABSENT,
    Ask,
    Gone,
    Granted,
    Key,
    Parting,
    Queue,
    Queued,
    Refused,
    Released,
    Renewal,
    Renewed,
    Slot,
    Stored,
)
from incumbent.stores.sqlite import SqliteEngine, schema
from incumbent.stores.sqlite.connection import SqliteConnection
from incumbent.stores.sqlite.core import SqliteStore
from incumbent.stores.sqlite.file import SqliteFile
from incumbent.stores.sqlite.host import Host
from tests.support.pace import BUSY, lasted

KEY = Key("default", "report")
ASK = Ask(10.0, "me")


class Machine:
    """A host with one file; cleaning up runs in line, so that its effect can be looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.boot = 1
        self.booted = 0.0
        self.time = 1_000.0
        self.wall_time = 1_800_000_000.0
        self.file = SqliteFile(path, self.host, spawn=lambda work: work())
        self.store = SqliteStore(self.file)

    def host(self) -> Host:
        booted = self.booted
        return Host(lambda: self.time - booted, lambda: self.wall_time, f"boot {self.boot}")

    def reboot(self, takes: float = 1.0, wall_moves: float | None = None) -> None:
        self.store.close()
        self.time += takes
        self.wall_time += takes if wall_moves is None else wall_moves
        self.booted = self.time
        self.boot += 1

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.wall_time += seconds

    def take(self, key: Key = KEY, claim: str = "", ask: Ask = ASK) -> Granted | Refused:
        outcome = self.store.take(key, claim or secrets.token_hex(16), ask, soon())
        assert isinstance(outcome, Granted | Refused)
        return outcome

    def grant(self, key: Key = KEY, claim: str = "", ask: Ask = ASK) -> Granted:
        outcome = self.take(key, claim, ask)
        assert isinstance(outcome, Granted)
        return outcome

    def queue(self, claim: str, ask: Ask) -> Queued:
        outcome = self.store.take(KEY, claim, ask, soon())
        assert isinstance(outcome, Queued)
        return outcome

    def give(self, granted: Granted, key: Key = KEY, closed_for: float = 0.0) -> None:
        outcome = self.store.give(
            key, granted.claim, granted.token, soon(), parting=Parting(closed_for=closed_for)
        )
        assert outcome == Released()

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


def soon(seconds: float = 5.0) -> float:
    return clock.now() + seconds


def renewal(granted: Granted, key: Key = KEY, ttl: float = 10.0) -> Renewal:
    return Renewal(key, granted.claim, granted.token, ttl, granted.epoch)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "leases.db")
    yield machine
    machine.store.close()


# -- reboots ---------------------------------------------------------------------------------


def test_a_reboot_ends_every_lease_at_once(machine: Machine) -> None:
    granted = machine.grant()
    machine.reboot()
    assert machine.store.renew([renewal(granted)], soon()) == [Gone("store_restarted")]
    assert machine.grant().token > granted.token


def test_what_is_left_of_a_closing_is_counted_by_the_wall_over_a_reboot(machine: Machine) -> None:
    machine.give(machine.grant(), closed_for=60.0)
    machine.reboot(takes=20.0)
    refused = machine.take()
    assert isinstance(refused, Refused)
    assert refused.reason == "closed"
    assert refused.retry_after == pytest.approx(40.0, abs=0.1)


def test_what_is_left_of_a_slot_is_counted_by_the_wall_over_a_reboot(machine: Machine) -> None:
    ask = Ask(10.0, "me", slot=Slot("monday", 3600.0))
    machine.give(machine.grant(ask=ask))
    machine.reboot(takes=600.0)
    refused = machine.take(ask=ask)
    assert isinstance(refused, Refused)
    assert refused.retry_after == pytest.approx(3000.0, abs=0.1)
    assert machine.store.read(KEY, soon()).slots["monday"] == pytest.approx(3000.0, abs=0.1)


def test_a_slot_is_open_to_the_claim_that_took_it(machine: Machine) -> None:
    ask = Ask(10.0, "me", slot=Slot("monday", 3600.0))
    machine.give(machine.grant(claim="a", ask=ask))
    assert isinstance(machine.take(claim="b", ask=ask), Refused)
    machine.grant(claim="a", ask=ask)


def test_a_wall_clock_set_back_over_a_reboot_prolongs_no_closing(machine: Machine) -> None:
    machine.give(machine.grant(), closed_for=60.0)
    machine.reboot(wall_moves=-1e6)
    refused = machine.take()
    assert isinstance(refused, Refused)
    assert refused.retry_after is not None
    assert refused.retry_after <= 60.0


def test_nobody_waits_any_more_after_a_reboot(machine: Machine) -> None:
    waits = Ask(10.0, "me", queue=Queue(60.0, fair=True))
    machine.grant()
    machine.queue("before", waits)
    machine.reboot()
    granted = machine.grant()
    assert machine.queue("after", waits).place == 0
    machine.give(granted)
    machine.grant(claim="after", ask=waits)


def test_fields_and_a_pause_outlive_a_reboot(machine: Machine) -> None:
    machine.store.put(KEY, "pause", b"{}", None, soon())
    machine.reboot()
    refused = machine.take()
    assert isinstance(refused, Refused)
    assert refused.reason == "paused"


def test_two_boots_at_once_on_one_file_are_refused_not_served(machine: Machine) -> None:
    granted = machine.grant()
    machine.sql("UPDATE state SET boot = 'another machine'")
    with pytest.raises(StoreUnavailable, match="another host"):
        machine.take()
    assert machine.store.renew([renewal(granted)], soon()) == [Gone("store_restarted")]


def test_a_connection_that_is_open_renews_nothing_once_another_boot_has_come(
    machine: Machine,
) -> None:
    """That boot grants the name to somebody else, and leaves the row as it is until then."""
    granted = machine.grant()
    machine.sql("UPDATE state SET boot = 'another machine', boots = boots + 1")
    assert machine.store.renew([renewal(granted)], soon()) == [Gone("store_restarted")]


# -- tokens ----------------------------------------------------------------------------------


def test_tokens_are_dense_between_openings(machine: Machine) -> None:
    tokens = []
    for _ in range(5):
        granted = machine.grant()
        machine.give(granted)
        tokens.append(granted.token)
    assert tokens == list(range(tokens[0], tokens[0] + 5))


def test_tokens_grow_when_the_wall_clock_is_set_back(machine: Machine) -> None:
    first = machine.grant()
    machine.give(first)
    machine.store.close()
    machine.wall_time -= 1e6
    assert machine.grant().token > first.token


def test_tokens_grow_after_the_record_was_forgotten(machine: Machine) -> None:
    machine.store.read(KEY, soon())
    machine.store.close()
    machine.wall_time -= 1e6  # so that the wall clock cannot help
    last = 0
    for _ in range(5):
        granted = machine.grant(ask=Ask(10.0, "me", keep_record=10.0))
        machine.give(granted)
        last = granted.token
    machine.sleep(20.0)
    machine.store.close()
    assert machine.store.read(KEY, soon()).history == ()
    assert machine.grant().token > last


def test_no_token_is_given_above_what_is_reserved(machine: Machine) -> None:
    first = machine.grant()
    machine.give(first)
    machine.sql(f"UPDATE state SET reserved = {first.token + 1}")
    last = machine.grant()
    machine.give(last)
    assert machine.sql("SELECT reserved FROM state") == [(last.token,)]
    beyond = machine.grant()
    assert beyond.token == last.token + 1
    assert machine.sql("SELECT reserved > ? FROM state".replace("?", str(beyond.token))) == [(1,)]


def test_tokens_grow_over_a_power_loss(machine: Machine, tmp_path: Path) -> None:
    machine.give(machine.grant())
    saved = {path: path.read_bytes() for path in tmp_path.iterdir() if "shm" not in path.name}
    last = 0
    for _ in range(50):
        granted = machine.grant()
        machine.give(granted)
        last = granted.token
    machine.reboot(takes=0.0)
    for path in tmp_path.iterdir():
        path.unlink()
    for path, content in saved.items():
        path.write_bytes(content)
    machine.wall_time -= 3600.0  # nor does the wall clock help
    assert machine.grant().token > last


@pytest.mark.parametrize("reboots", [0, 1, 20])
def test_tokens_grow_when_the_whole_file_is_lost(
    machine: Machine, tmp_path: Path, reboots: int
) -> None:
    machine.grant()
    for _ in range(reboots):
        machine.reboot(takes=1.0)
        machine.grant()
    granted = machine.grant(KEY._replace(name="other"))
    # After a reboot tokens are ahead of the clock, though by no more than a minute.
    assert granted.token <= (machine.wall_time + 60.001) * 1e6
    machine.sleep(0.001)
    for path in tmp_path.iterdir():
        path.unlink()
    assert machine.grant().token > granted.token


# -- files that change under us --------------------------------------------------------------


def test_a_lease_in_a_removed_file_is_gone(machine: Machine) -> None:
    granted = machine.grant()
    machine.path.unlink()
    assert machine.store.renew([renewal(granted)], soon()) == [Gone("store_restarted")]
    assert machine.grant().epoch != granted.epoch


def test_a_file_that_is_replaced_while_it_is_opened_leaves_no_error_behind(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with pytest.raises(FileNotFoundError):
        SqliteConnection(str(machine.path.with_name("gone")), machine.host())
    gc.collect()
    assert reported == []


def test_a_copy_put_in_the_place_of_the_file_is_another_store(machine: Machine) -> None:
    granted = machine.grant()
    copy = machine.path.with_name("copy")
    backup = sqlite3.connect(copy)
    source = sqlite3.connect(machine.path)
    source.backup(backup)
    backup.close()
    source.close()
    copy.rename(machine.path)
    assert machine.store.renew([renewal(granted)], soon()) == [Gone("store_restarted")]


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_removed_log_ends_what_was_believed_and_this_process_s_use(
    machine: Machine, suffix: str
) -> None:
    granted = machine.grant()
    machine.path.with_name(machine.path.name + suffix).unlink()
    machine.sleep(0.2)
    assert machine.store.renew([renewal(granted)], soon()) == [Gone("store_restarted")]
    with pytest.raises(StoreUnavailable, match="restart this process") as caught:
        machine.take()
    assert caught.value.permanent


def test_a_renewal_that_comes_late_revives_nothing(machine: Machine) -> None:
    granted = machine.grant()
    machine.sleep(10.0)
    assert machine.store.renew([renewal(granted)], soon()) == [Gone()]
    assert machine.store.read(KEY, soon()).holdings == ()


def test_a_file_of_another_format_is_refused_unread_and_left_as_it_is(machine: Machine) -> None:
    machine.give(machine.grant())
    machine.store.close()
    machine.sql("ALTER TABLE state DROP COLUMN floor")
    for number in (0, 2):
        machine.sql(f"PRAGMA user_version = {number}")
        before = machine.path.read_bytes()
        with pytest.raises(StoreUnavailable, match=f"has format {number}, .* format 1:") as caught:
            machine.take()
        assert caught.value.permanent
        assert "move it away" in str(caught.value)
        assert str(machine.path) in str(caught.value)
        assert machine.path.read_bytes() == before
        level, what, _ = SqliteEngine(machine.path).diagnose(15.0, soon())[0]
        assert (level, "move it away" in what) == ("error", True)
        machine.store.close()


def test_nobody_changes_the_journal_mode_of_a_file_in_use(machine: Machine) -> None:
    granted = machine.grant()
    with closing(sqlite3.connect(machine.path)) as other:
        other.execute("PRAGMA busy_timeout = 0")
        with suppress(sqlite3.OperationalError):  # it is locked
            assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("wal",)
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert machine.store.renew([renewal(granted)], soon()) == [Renewed()]


def test_a_file_that_is_no_database_is_refused(machine: Machine) -> None:
    machine.path.write_bytes(b"these are not the leases you are looking for" * 100)
    with pytest.raises(StoreUnavailable, match="not a SQLite database") as caught:
        machine.take()
    assert caught.value.permanent


def test_a_database_of_another_program_is_left_alone(machine: Machine) -> None:
    machine.sql("CREATE TABLE customers (name TEXT)")
    before = machine.path.read_bytes()
    with pytest.raises(StoreUnavailable, match="another program") as caught:
        machine.take()
    assert caught.value.permanent
    assert machine.path.read_bytes() == before


# -- trouble in the middle -------------------------------------------------------------------


def test_a_locked_file_makes_unavailable_and_not_wrong(machine: Machine) -> None:
    granted = machine.grant()
    other = sqlite3.connect(machine.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    before = clock.now()
    with pytest.raises(StoreUnavailable, match="locked") as caught:
        machine.store.renew([renewal(granted)], soon(0.2))
    assert lasted(before, 0.2, 0.2 + BUSY)
    assert not caught.value.permanent
    assert machine.store.read(KEY, soon()).holdings[0].holder == "me"
    other.close()
    assert machine.store.renew([renewal(granted)], soon()) == [Renewed()]


def test_a_lock_that_is_let_go_in_time_is_waited_for(machine: Machine) -> None:
    machine.store.read(KEY, soon())
    other = sqlite3.connect(machine.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.1, other.close).start()
    machine.grant()


def test_an_event_loop_goes_on_while_a_peer_locks_the_file(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "leases.db")
    engine.store().read(KEY, soon())
    other = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        with pytest.raises(StoreUnavailable):
            await engine.async_store().take(KEY, "a", ASK, soon(0.3))
        ticking.cancel()

    asyncio.run(main())
    other.close()
    engine.store().close()
    # Of a blocked loop there would be a handful, and no stopwatch tells on a busy machine.
    assert turns > 100


def test_a_full_disk_is_certainly_not_applied(machine: Machine) -> None:
    machine.give(machine.grant())
    connection = machine.file.borrow()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    machine.file.put_back(connection)
    with pytest.raises(StoreUnavailable, match="free some space") as caught:
        for number in range(100):
            machine.take(Key("default", f"{'x' * 150}{number}"))
    assert not caught.value.permanent


def failing_commit(machine: Machine, code: int) -> None:
    connection = machine.file.borrow()
    execute = connection.execute

    def fail(statement: str, *values: object) -> sqlite3.Cursor:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            raise error
        return execute(statement, *values)

    connection.execute = fail
    machine.file.put_back(connection)


def test_a_commit_that_fails_on_the_disk_is_unknown(machine: Machine) -> None:
    machine.give(machine.grant())
    failing_commit(machine, sqlite3.SQLITE_IOERR_FSYNC)
    with pytest.raises(OutcomeUnknown):
        machine.take()
    machine.grant()


def test_a_commit_that_finds_no_space_was_not_applied(machine: Machine) -> None:
    machine.give(machine.grant())
    failing_commit(machine, sqlite3.SQLITE_FULL)
    with pytest.raises(StoreUnavailable):
        machine.take()


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("place", ["BEGIN", "SELECT", "INSERT", "COMMIT"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interruption_anywhere_leaves_no_lock_and_no_half_of_a_change(
    machine: Machine, place: str, when: str
) -> None:
    machine.give(machine.grant())
    connection = machine.file.borrow()
    execute = connection.execute

    def interrupt(statement: str, *values: object) -> sqlite3.Cursor:
        hit = statement.lstrip().startswith(place)
        if hit and when == "before":
            raise Interrupted
        cursor = execute(statement, *values)
        if hit:
            raise Interrupted
        return cursor

    connection.execute = interrupt
    machine.file.put_back(connection)
    with pytest.raises(Interrupted):
        machine.take(claim="a")
    applied = place == "COMMIT" and when == "after"
    held = machine.store.read(KEY, soon()).holdings
    assert [holding.claim for holding in held] == (["a"] if applied else [])
    machine.sleep(20.0)
    machine.grant()


def test_a_signal_handler_in_the_middle_has_a_connection_of_its_own(machine: Machine) -> None:
    machine.give(machine.grant())
    used: list[SqliteConnection] = []
    seen: list[object] = []

    def handler(number: int, frame: FrameType | None) -> None:
        other = machine.file.borrow()
        used.append(other)
        machine.file.put_back(other)
        seen.append(machine.store.read(KEY, soon()).holdings)

    before = signal.signal(signal.SIGUSR1, handler)
    connection = machine.file.borrow()
    execute = connection.execute

    def with_signal(statement: str, *values: object) -> sqlite3.Cursor:
        cursor = execute(statement, *values)
        if statement.lstrip().startswith("INSERT"):
            signal.raise_signal(signal.SIGUSR1)
        return cursor

    connection.execute = with_signal
    machine.file.put_back(connection)
    try:
        granted = machine.grant()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert used
    assert connection not in used
    assert set(seen) == {()}
    assert machine.store.renew([renewal(granted)], soon()) == [Renewed()]


# -- growth ----------------------------------------------------------------------------------


def test_the_history_keeps_the_last_twenty(machine: Machine) -> None:
    tokens = []
    for _ in range(45):
        granted = machine.grant()
        machine.sleep(1.0)
        machine.give(granted)
        tokens.append(granted.token)
    past = machine.store.read(KEY, soon()).history
    assert [holding.token for holding in past] == tokens[-20:]
    assert all(holding.ended == holding.started + 1.0 for holding in past)
    assert machine.sql("SELECT count(*) FROM past") == [(19,)]


def test_records_are_forgotten_when_their_time_has_come(machine: Machine) -> None:
    ask = Ask(1.0, "me", keep_record=5.0, slot=Slot("s", 3.0))
    for number in range(300):
        machine.grant(Key("default", f"order:{number}"), ask=ask)
    machine.store.put(Key("default", "order:7"), "state", b"x", None, soon())
    machine.sleep(100.0)
    for _ in range(20):
        machine.store.close()
        machine.store.read(KEY, soon())
    assert machine.sql("SELECT key FROM lease") == [("default/order:7",)]
    assert machine.sql("SELECT count(*) FROM past") == [(0,)]
    assert machine.sql("SELECT kind, name FROM beside") == [("field", "state")]


def test_what_still_means_something_is_not_forgotten(machine: Machine) -> None:
    def name(number: int) -> Key:
        return Key("default", f"key:{number}")

    keep = Ask(1.0, "me", keep_record=1.0)
    machine.give(machine.grant(name(1), ask=keep), name(1), closed_for=500.0)
    machine.grant(name(2), ask=Ask(1.0, "me", keep_record=1.0, slot=Slot("s", 500.0)))
    held = machine.grant(name(3), ask=Ask(10.0, "me", keep_record=10.0))
    machine.store.renew([renewal(held, name(3), ttl=500.0)], soon())
    machine.sleep(100.0)
    machine.store.close()
    assert len(machine.store.scan("default", "key:", soon())) == 3


def test_a_field_keeps_its_record_for_as_long_as_it_stands(machine: Machine) -> None:
    first = machine.store.put(KEY, "state", b"x", None, soon())
    machine.sleep(1e6)
    machine.store.close()
    assert "state" in machine.store.read(KEY, soon()).fields
    second = machine.store.put(KEY, "state", b"y", None, soon())
    assert isinstance(first, Stored)
    assert isinstance(second, Stored)
    assert second.version > first.version


def test_the_log_is_bounded_under_steady_use(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "leases.db")
    store = engine.store()
    largest = 0
    for _ in range(12_000):
        granted = store.take(KEY, "a", ASK, soon())
        assert isinstance(granted, Granted)
        store.give(KEY, "a", granted.token, soon())
        largest = max(largest, (tmp_path / "leases.db-wal").stat().st_size)
    store.close()
    assert largest < 32 << 20  # it would be 48 MiB


def test_a_batch_of_renewals_is_one_transaction(machine: Machine) -> None:
    keys = [Key("default", f"k{number}") for number in range(10)]
    batch = [renewal(machine.grant(key), key) for key in keys]
    statements: list[str] = []
    connection = machine.file.borrow()
    connection.raw.set_trace_callback(statements.append)
    machine.file.put_back(connection)
    assert machine.store.renew(batch, soon()) == [Renewed()] * 10
    assert sum(statement.startswith("BEGIN") for statement in statements) == 1


def test_waiting_reads_and_takes_no_lock(machine: Machine) -> None:
    machine.grant()
    refused = machine.take()
    assert isinstance(refused, Refused)
    other = sqlite3.connect(machine.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    machine.store.wait_change(KEY, refused.seen, soon(0.05))
    other.close()


def test_only_so_many_connections_are_kept(machine: Machine) -> None:
    connections = [machine.file.borrow() for _ in range(20)]
    for connection in connections:
        machine.file.put_back(connection)
    usable = 0
    for connection in connections:
        try:
            connection.execute("SELECT 1")
            usable += 1
        except sqlite3.ProgrammingError:
            pass
    assert usable == 8


def test_doctor_names_the_file_and_what_it_lies_on(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "leases.db")
    found = engine.diagnose(15.0, soon())
    engine.store().close()
    assert found[0][0] == "ok"
    assert str(tmp_path / "leases.db") in found[0][1]
    assert any("MiB are free" in what for _, what, _ in found)


def test_doctor_says_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "leases.db").write_bytes(b"no database" * 100)
    level, what, _ = SqliteEngine(tmp_path / "leases.db").diagnose(15.0, soon())[0]
    assert level == "error"
    assert "not a SQLite database" in what


def test_absent_guards_one_of_many_writers(machine: Machine) -> None:
    outcomes = [machine.store.put(KEY, "state", b"x", ABSENT, soon()) for _ in range(3)]
    assert [type(outcome).__name__ for outcome in outcomes] == ["Stored", "Stale", "Stale"]


def test_the_application_is_named_in_the_file(machine: Machine) -> None:
    machine.grant()
    assert machine.sql("PRAGMA application_id") == [(schema.APPLICATION_ID,)]


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE lease SET expires = 'x'",
        "UPDATE lease SET token = 'many'",
        "UPDATE lease SET meta = 'x'",
        "UPDATE lease SET version = 1.5",
        "UPDATE lease SET rest = 'no record'",
        "UPDATE lease SET heartbeat = 'x'",
        "UPDATE waiting SET fair = 'x'",
    ],
)
def test_a_row_that_was_edited_by_hand_is_granted_to_nobody_and_left_as_it_is(
    machine: Machine, edit: str
) -> None:
    assert isinstance(machine.store.take(KEY, "a", ASK, clock.now() + 5), Granted)
    waits = Ask(10.0, "next", queue=Queue(5.0))
    assert isinstance(machine.store.take(KEY, "b", waits, clock.now() + 5), Queued)
    with closing(sqlite3.connect(machine.path)) as raw:
        raw.execute(edit)
        raw.commit()
        rows = raw.execute("SELECT * FROM lease").fetchall()
        machine.time += 11.0
        for ask in (ASK, waits):
            with pytest.raises(StoreUnavailable, match=r"default/report .*Nobody is granted"):
                machine.store.take(KEY, "c", ask, clock.now() + 5)
        with pytest.raises(StoreUnavailable, match="Nobody is granted"):
            machine.store.read(KEY, clock.now() + 5)
        assert raw.execute("SELECT * FROM lease").fetchall() == rows


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        ("UPDATE past SET token = 'x'", "the history of default/report"),
        ("UPDATE beside SET value = 'x'", "report"),
        ("UPDATE beside SET value = 7", "report"),
        ("UPDATE beside SET written = 'x', boots = 0", "report"),
    ],
)
def test_values_beside_a_record_that_were_edited_are_said_when_they_are_read(
    machine: Machine, edit: str, what: str
) -> None:
    machine.store.put(KEY, "field", b"value", None, clock.now() + 5)
    for claim in ("a", "b"):
        granted = machine.store.take(KEY, claim, ASK, clock.now() + 5)
        assert isinstance(granted, Granted)
        machine.store.give(KEY, claim, granted.token, clock.now() + 5)
    with closing(sqlite3.connect(machine.path)) as raw:
        raw.execute(edit)
        raw.commit()
    with pytest.raises(StoreUnavailable, match=what):
        machine.store.read(KEY, clock.now() + 5)

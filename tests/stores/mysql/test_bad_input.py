"""What is wrong with the data or the server: said with what to do, and nobody is granted."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from pymysql.constants import CLIENT

from incumbent.errors import StoreUnavailable
from incumbent.model import Granted, Released, Renewed, Slot, Unproved
from incumbent.stores.mysql import statements
from incumbent.stores.mysql.wire import MysqlWire, Reply
from incumbent.stores.registers import Swap
from tests import tiers
from tests.cli.tool import incumbent
from tests.stores.mysql.world import ASK, Party, new_claim, new_database, party, soon
from tests.support.mariadb import MariaServer


@pytest.fixture
def held(here: Party) -> tuple[Party, Granted]:
    return here, here.take_and_use()


def nobody_is_granted(here: Party, granted: Granted, *words: str) -> None:
    """Neither a taker nor the holder, and the message has the key and the words."""
    for ask in (
        lambda: here.store.take(here.key, new_claim(), ASK, soon()),
        lambda: here.store.take(here.key, new_claim(), replace(ASK, candidacy=5.0), soon()),
        lambda: here.store.give(here.key, granted.claim, granted.token, soon()),
        lambda: here.store.put(here.key, "state", b"1", None, soon()),
        lambda: here.store.read(here.key, soon()),
        lambda: asyncio.run(here.take_async(new_claim())),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert caught.value.permanent
        for word in (str(here.key), *words):
            assert word in str(caught.value)
    (outcome,) = here.store.renew([here.renewal(granted)], soon())
    assert isinstance(outcome, Unproved)
    assert str(here.key) in outcome.why


@pytest.mark.left(tiers.FORMS, "expires=0", "version=0", "rest='x'")
@pytest.mark.parametrize(
    "edit",
    [
        "expires=0",
        "expires=expires+1",
        "claim=''",
        "claim='another'",
        "token=token+1",
        "token=0",
        "version=0",
        "version=version-1",
        "granted=0",
        "keep_until=0",
        "notices=1",
        "meta='x'",
        "holder='another'",
        "rest='x'",
        "rest='incumbent2 00000000 {}'",
        "past='{'",
        "since=0,expires=0,claim='',ttl=0",
    ],
)
def test_a_row_that_was_edited_by_hand_is_granted_to_nobody_and_left_as_it_is(
    held: tuple[Party, Granted], maria_server: MariaServer, database: str, edit: str
) -> None:
    here, granted = held
    name = f"WHERE name='{here.key}'"
    maria_server.sql(f"UPDATE incumbent_lease SET {edit} {name}", database)
    before = maria_server.sql(f"SELECT * FROM incumbent_lease {name}", database)
    nobody_is_granted(here, granted, "was cut short, or edited", "look at what wrote it")
    assert maria_server.sql(f"SELECT * FROM incumbent_lease {name}", database) == before


def sealed(server: MariaServer, database: str, change: str) -> None:
    """As by another version of incumbent, which seals what it writes."""
    seal = statements._SEAL
    server.sql(f"UPDATE incumbent_lease SET {change},seal={seal}", database)


@pytest.mark.left(tiers.FORMS, "incumbent2*")
@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("incumbent2 00000000 {}", "has format 2, and this version of incumbent speaks format 1"),
        ("incumbent1 00000000 {}", "its checksum does not match"),
        ("no record at all", "is not of incumbent"),
        ('incumbent1 6b2ff2a8 {"token":0', "its checksum does not match"),
    ],
)
def test_a_rest_that_another_version_wrote_is_granted_to_nobody(
    held: tuple[Party, Granted], maria_server: MariaServer, database: str, rest: str, words: str
) -> None:
    here, granted = held
    sealed(maria_server, database, f"rest='{rest}',notices=1")
    nobody_is_granted(here, granted, words)


def test_a_record_that_is_mended_is_served_again(
    held: tuple[Party, Granted], maria_server: MariaServer, database: str
) -> None:
    here, granted = held
    maria_server.sql("UPDATE incumbent_lease SET holder='x'", database)
    nobody_is_granted(here, granted)
    maria_server.sql("UPDATE incumbent_lease SET holder='host-1'", database)
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]


def test_one_record_that_cannot_be_read_costs_the_others_nothing(
    held: tuple[Party, Granted], maria_server: MariaServer, database: str
) -> None:
    here, granted = held
    bad = here.key._replace(name="bad")
    spoilt = here.store.take(bad, new_claim(), ASK, soon())
    assert isinstance(spoilt, Granted)
    maria_server.sql(f"UPDATE incumbent_lease SET ttl=1 WHERE name='{bad}'", database)
    good = here.renewal(granted)
    outcomes = here.store.renew([replace(good, key=bad), good], soon())
    assert isinstance(outcomes[0], Unproved)
    assert outcomes[1] == Renewed()
    assert [it.key for it in here.store.scan("faults", "", soon())] == [here.key]


@pytest.mark.left(tiers.FORMS, "slot")
@pytest.mark.parametrize("kind", ["field", "slot", "join"])
def test_a_value_beside_a_record_that_cannot_be_read_is_said(
    held: tuple[Party, Granted], maria_server: MariaServer, database: str, kind: str
) -> None:
    here, granted = held
    here.store.put(here.key, "state", b"1", None, soon())
    here.store.give(here.key, granted.claim, granted.token, soon())
    slotted = replace(ASK, slot=Slot("monday", 60.0))
    granted = here.take(ask=slotted)
    spoil = "INSERT INTO incumbent_beside SELECT name,'join','x',0,value FROM incumbent_beside"
    if kind != "join":
        spoil = f"UPDATE incumbent_beside SET value='x' WHERE kind='{kind}'"
    maria_server.sql(f"{spoil} LIMIT 1", database)
    with pytest.raises(StoreUnavailable, match=str(here.key)):
        here.store.read(here.key, soon())
    if kind == "slot":
        with pytest.raises(StoreUnavailable, match="slot monday"):
            here.store.take(here.key, new_claim(), slotted, soon())


# -- what is too large


def test_a_holder_that_is_too_long_is_refused_with_the_name(here: Party) -> None:
    with pytest.raises(StoreUnavailable, match="larger than the store allows") as caught:
        here.take(ask=replace(ASK, holder="x" * 1001))
    assert str(here.key) in str(caught.value)
    here.take(ask=replace(ASK, holder="ü" * 1000))
    with pytest.raises(StoreUnavailable, match="larger than the store allows"):
        here.store.put(here.key, "f" * 1001, b"", None, soon())


@pytest.mark.left(tiers.FORMS)
def test_a_field_that_is_larger_than_a_packet_is_refused_before_it_is_sent(
    own_maria: MariaServer,
) -> None:
    own_maria.set("max_allowed_packet=65536")
    with party(own_maria.url_of(new_database(own_maria))) as one:
        granted = one.take()
        with pytest.raises(StoreUnavailable, match="max_allowed_packet is 65536") as caught:
            one.store.put(one.key, "state", b"x" * 60_000, None, soon())
        assert str(one.key) in str(caught.value)
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


@pytest.mark.left(tiers.FORMS)
def test_a_record_that_has_grown_too_large_keeps_what_it_has(own_maria: MariaServer) -> None:
    """A hundred candidates with long names, in packets of 64 KiB."""
    own_maria.set("max_allowed_packet=65536")
    with party(own_maria.url_of(new_database(own_maria))) as one:
        granted = one.take()
        with pytest.raises(StoreUnavailable) as caught:
            for number in range(100):
                asked = replace(ASK, holder=f"{number}{'x' * 900}", candidacy=60.0)
                one.store.take(one.key, new_claim(), asked, soon())
        assert str(one.key) in str(caught.value)
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()


def test_a_text_that_is_not_in_utf_8_is_refused_and_nothing_is_sent(here: Party) -> None:
    with pytest.raises(StoreUnavailable, match="UTF-8"):
        here.take(ask=replace(ASK, holder="lone \udc80"))
    here.take()


# -- what the server is, or became


def unfit(url: str, *words: str) -> None:
    """Refused on both sides, and by the doctor."""
    with party(url) as one:
        for side in ("blocking", "asyncio"):
            with pytest.raises(StoreUnavailable) as caught:
                one.take() if side == "blocking" else asyncio.run(one.take_async())
            for word in words:
                assert word in str(caught.value)
        found = one.engine.diagnose(10.0, soon())
        assert any(level == "error" and words[0] in what for level, what, _ in found)


def test_tables_without_transactions_are_refused(maria_server: MariaServer, database: str) -> None:
    maria_server.sql("ALTER TABLE incumbent_marker ENGINE=MyISAM", database)
    unfit(maria_server.url_of(database), "InnoDB", "ALTER TABLE")


def test_tables_of_another_format_are_refused(maria_server: MariaServer, database: str) -> None:
    with party(maria_server.url_of(database)) as one:
        one.take()
    maria_server.sql("UPDATE incumbent_marker SET format=2", database)
    unfit(maria_server.url_of(database), "format 2", "speaks format 1")


@pytest.mark.left(tiers.FORMS)
def test_a_clock_that_stands_still_in_a_statement_is_refused() -> None:
    with MariaServer(["sysdate-is-now"]) as server:
        unfit(server.url_of(new_database(server)), "stands still", "sysdate-is-now")


@pytest.mark.left(tiers.FORMS)
def test_a_binary_log_of_statements_is_refused() -> None:
    """Replicas would execute them with a clock of their own."""
    with MariaServer(["log-bin=log", "binlog-format=STATEMENT"]) as server:
        unfit(server.url_of(new_database(server)), "binlog_format", "MIXED or ROW")


def test_what_makes_a_server_unfit_is_noticed_by_connections_that_are_there(
    here: Party, maria_server: MariaServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("incumbent.stores.pooled_registers.LOOK_EVERY", 0.0)
    here.take()
    maria_server.sql("ALTER TABLE incumbent_lease ENGINE=MyISAM", database)
    with pytest.raises(StoreUnavailable, match="InnoDB"):
        here.store.take(here.key, new_claim(), ASK, soon())


def test_a_missing_table_is_final_and_the_doctor_mends_it(maria_server: MariaServer) -> None:
    url = maria_server.url_of(maria_server.new_database())
    unfit(url, "doctor --fix")
    found = incumbent("-s", url, "doctor")
    assert found.returncode == 69, found.stdout
    assert "doctor --fix" in found.stdout + found.stderr
    for _ in range(2):
        mended = incumbent("-s", url, "doctor", "--fix")
        assert "the tables incumbent_* are made" in mended.stdout, mended.stdout + mended.stderr
    done = incumbent("-s", f"{url}?restart_wait=0", "run", "job", "--", "echo", "it ran")
    assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr


# -- conditional writes that do not hold


def test_a_client_that_counts_the_rows_it_found_is_no_trouble(
    maria_server: MariaServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLIENT_FOUND_ROWS, as a patched driver may say: each write changes what it finds."""
    monkeypatch.setattr(
        "incumbent.stores.mysql.wire.CLIENT.MULTI_STATEMENTS",
        CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
    )
    with party(maria_server.url_of(database)) as one:
        granted = one.take()
        assert one.refused().holders[0].token == granted.token
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()


def lies(reply: Reply) -> Reply:
    return reply._replace(affected=1) if not reply.rows else reply


def test_a_proxy_that_says_that_all_was_written_is_found_by_the_first_use_and_the_doctor(
    maria_server: MariaServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = MysqlWire.ask

    def lying(self: MysqlWire, statements: str, until: float, *, in_doubt: bool) -> list[Reply]:
        return [lies(reply) for reply in ask(self, statements, until, in_doubt=in_doubt)]

    monkeypatch.setattr(MysqlWire, "ask", lying)
    unfit(maria_server.url_of(database), "two clients would be granted the same lease", "proxy")


def test_a_proxy_that_drops_the_condition_is_found(
    maria_server: MariaServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = MysqlWire.ask

    def careless(self: MysqlWire, asked: str, until: float, *, in_doubt: bool) -> list[Reply]:
        return ask(self, re.sub(r" AND version=\d+", "", asked), until, in_doubt=in_doubt)

    monkeypatch.setattr(MysqlWire, "ask", careless)
    unfit(maria_server.url_of(database), "two clients would be granted the same lease")


@pytest.mark.left(tiers.FORMS)
def test_a_proxy_that_commits_each_statement_is_found(
    maria_server: MariaServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows a swap that was refused is written all the same."""
    ask = MysqlWire.ask

    def forgetful(self: MysqlWire, asked: str, until: float, *, in_doubt: bool) -> list[Reply]:
        return ask(self, asked.replace(" AND @done", ""), until, in_doubt=in_doubt)

    monkeypatch.setattr(MysqlWire, "ask", forgetful)
    unfit(maria_server.url_of(database), "two clients would be granted the same lease")


def test_a_proxy_that_reads_from_a_replica_is_refused_and_begins_nothing(
    maria_server: MariaServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with party(maria_server.url_of(database)) as one:
        one.take()
    before = maria_server.sql("SELECT id FROM incumbent_marker", database)
    ask = MysqlWire.ask

    def split(self: MysqlWire, asked: str, until: float, *, in_doubt: bool) -> list[Reply]:
        if not in_doubt:
            asked = asked.replace(statements.HERE, "'a replica 1 1'")
        return ask(self, asked, until, in_doubt=in_doubt)

    monkeypatch.setattr(MysqlWire, "ask", split)
    unfit(maria_server.url_of(database), "what it reads is not what it writes", "proxy")
    assert maria_server.sql("SELECT id FROM incumbent_marker", database) == before


def test_a_proxy_that_leads_each_request_elsewhere_is_asked_three_times(
    here: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.take()
    ask, asked_for = MysqlWire.ask, list[str]()

    def elsewhere(self: MysqlWire, asked: str, until: float, *, in_doubt: bool) -> list[Reply]:
        replies = ask(self, asked, until, in_doubt=in_doubt)
        if asked != statements.HANDSHAKE:
            asked_for.append(asked)
            rows = [("another", *row[1:]) for row in replies[0].rows]
            replies[0] = replies[0]._replace(rows=rows)
        return replies

    monkeypatch.setattr(MysqlWire, "ask", elsewhere)
    for look in (
        lambda: here.store.read(here.key, soon()),
        lambda: here.store.scan(here.key.namespace, "", soon()),
    ):
        asked_for.clear()
        with pytest.raises(StoreUnavailable, match="what it reads is not what it writes") as caught:
            look()
        assert not caught.value.permanent
        assert len(asked_for) == 3


def test_autocommit_that_stays_off_is_refused(
    maria_server: MariaServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = MysqlWire.ask

    def off(self: MysqlWire, asked: str, until: float, *, in_doubt: bool) -> list[Reply]:
        return ask(self, asked.replace("autocommit=1", "autocommit=0"), until, in_doubt=in_doubt)

    monkeypatch.setattr(MysqlWire, "ask", off)
    unfit(maria_server.url_of(database), "autocommit")


# -- clocks


def test_a_swap_is_refused_if_the_servers_clock_stepped_back(
    here: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.take()
    real = statements.swap

    def later(ours: str, version: int, not_before: int, columns: str) -> str:
        return real(ours, version, not_before + 3_600_000_000, columns)

    monkeypatch.setattr(statements, "swap", later)
    monkeypatch.setattr("incumbent.stores.registers.Swap.not_before", property(in_an_hour))
    with pytest.raises(StoreUnavailable, match="clock stepped back by 3") as caught:
        here.store.put(here.key, "state", b"1", None, soon())
    assert str(here.key) in str(caught.value)
    assert caught.value.retry_after


def in_an_hour(swap: Swap) -> int:
    return swap.seen.now + 3_600_000_000


def test_the_time_zone_of_the_server_does_not_matter(own_maria: MariaServer) -> None:
    own_maria.set("time_zone='-07:00'")
    with party(own_maria.url_of(new_database(own_maria))) as one:
        granted = one.take()
        own_maria.set("time_zone='+11:00'")
        with party(one.engine.url) as two:
            two.key = one.key
            remaining = two.refused().holders[0].remaining
            assert remaining is not None
            assert 0 < remaining <= 10
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


def test_an_operators_connection_sees_text(
    held: tuple[Party, Granted], maria_server: MariaServer, database: str
) -> None:
    here, granted = held
    asked = "SELECT name,holder,claim,token FROM incumbent_lease"
    assert maria_server.sql(asked, database)[0] == (
        str(here.key),
        "host-1",
        granted.claim,
        granted.token,
    )

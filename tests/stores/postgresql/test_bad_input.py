"""What is wrong before the first lease: said with what to do, exit 69, nothing taken or shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Granted, Parting, Released, Renewed, Slot
from tests import tiers
from tests.cli.tool import incumbent
from tests.stores.postgresql.world import Party, new_database, party, schema, soon
from tests.support.postgresql import PostgresServer
from tests.support.servers import ROOT, TlsFiles, free_port

SECRET = "open/sesame:42 %"


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that asks everybody for a password."""
    with PostgresServer(password=SECRET) as server:
        yield server


def refused_for_good(url: str, *words: str) -> None:
    """Both sides say the words and no password."""
    with party(url) as one:
        for ask in (one.take, partial(on_asyncio, one)):
            with pytest.raises(StoreUnavailable) as caught:
                ask()
            said = f"{caught.value}{caught.value.__cause__}{one.engine!r}{one.engine.url}"
            assert caught.value.permanent, said
            assert not [word for word in words if word not in said], said
            assert SECRET not in said
            assert "sesame" not in said


def on_asyncio(one: Party) -> Granted:
    return asyncio.run(one.take_async())


def refused_by_the_tool(url: str, *words: str) -> None:
    done = incumbent("-s", url, "run", "job", "--wait=10", "--", "echo", "it ran")
    assert (done.returncode, done.stdout) == (69, ""), done.stderr
    assert not [word for word in words if word not in done.stderr], done.stderr
    assert "sesame" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_password_is_final_and_never_shows(guarded: PostgresServer) -> None:
    url = guarded.url_of(new_database(guarded), password="another-sesame")
    refused_for_good(url, "password authentication failed", "check the user name")
    refused_by_the_tool(url, "password authentication failed", "check the user name")


def test_a_missing_password_is_final(guarded: PostgresServer) -> None:
    url = f"postgresql://postgres@127.0.0.1:{guarded.port}/postgres"
    refused_for_good(url, "no password supplied", "give a password")


def test_the_right_password_is_taken_from_a_file_too(
    guarded: PostgresServer, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    url = f"postgresql://postgres@127.0.0.1:{guarded.port}/{new_database(guarded)}?restart_wait=0"
    given = {"INCUMBENT_STORE_PASSWORD_FILE": str(file)}
    done = incumbent("-s", url, "run", "job", "--", "echo", "it ran", env=given)
    assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr


def test_a_password_that_changes_later_is_an_outage_that_may_pass() -> None:
    with (
        PostgresServer(password=SECRET) as server,
        party(server.url_of(new_database(server))) as one,
    ):
        one.take()
        server.psql("alter role postgres password 'changed'")
        one.store.close()
        with pytest.raises(StoreUnavailable) as caught:
            one.take()
        assert not caught.value.permanent


def test_a_missing_database_is_final(postgres_server: PostgresServer) -> None:
    refused_for_good(postgres_server.url_of("nowhere"), '"nowhere" does not exist', "create that")


def test_a_missing_role_is_final(postgres_server: PostgresServer) -> None:
    refused_for_good(postgres_server.url_of("postgres", "nobody9"), "does not exist", "create that")


def test_a_missing_schema_is_final_and_the_doctor_mends_it(
    postgres_server: PostgresServer,
) -> None:
    url = postgres_server.url_of(postgres_server.new_database())
    refused_for_good(url, "doctor --fix")
    refused_by_the_tool(url, "doctor --fix")
    found = incumbent("-s", url, "doctor")
    assert found.returncode == 69, found.stdout
    assert "doctor --fix" in found.stdout + found.stderr
    mended = incumbent("-s", url, "doctor", "--fix")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    done = incumbent("-s", f"{url}?restart_wait=0", "run", "job", "--", "echo", "it ran")
    assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr


def test_the_doctor_may_mend_again_and_again(postgres_server: PostgresServer) -> None:
    database = new_database(postgres_server)
    url = postgres_server.url_of(database)
    with party(url) as one:
        granted = one.take(ask=Ask(60.0, "host-1"))
        for _ in range(2):
            assert incumbent("-s", url, "doctor", "--fix").returncode == 0
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


def test_many_at_once_may_mend(postgres_server: PostgresServer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    url = postgres_server.url_of(postgres_server.new_database())
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: incumbent("-s", url, "doctor", "--fix"), range(4)))
    assert {it.returncode for it in done} == {0}, [it.stderr + it.stdout for it in done]


def test_a_host_that_is_not_there_is_an_outage(tmp_path: Path) -> None:
    url = f"postgresql://app:sesame@127.0.0.1:{free_port()}/app"
    with party(url) as one:
        with pytest.raises(StoreUnavailable) as caught:
            one.take()
        assert not caught.value.permanent
        assert "sesame" not in str(caught.value)
    done = incumbent("-s", url, "run", "job", "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 69
    assert not (tmp_path / "ran").exists()


@pytest.mark.left(tiers.FORMS, "*ses/ame*", "*:port*")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:ses/ame@host/db",
        "postgresql://app:ses#ame@host/db",
        "postgresql://app:sesame@host/db?wait=sesame",
        "postgresql://app:sesame@host/db?target_session_attrs=any",
        "postgresql://app:sesame@host:port/db",
        "postgresql://app:sesame@host/db?no_such_option=sesame",
    ],
)
def test_a_malformed_url_is_refused_without_being_shown(url: str) -> None:
    done = incumbent("-s", url, "run", "job", "--", "echo", "it ran")
    assert (done.returncode, done.stdout) == (64, ""), done.stderr
    assert "sesame" not in done.stderr.replace("sesame is", "")
    assert "ses/ame" not in done.stderr
    assert "ame@" not in done.stderr


# -- rights


def make_role(server: PostgresServer, database: str, role: str, *grants: str) -> str:
    if not server.psql(f"select 1 from pg_roles where rolname = '{role}'"):
        server.psql(f"create role {role} login")
    for grant in grants:
        server.psql(grant.format(role), database)
    return server.url_of(database, role)


# These two lines are those of docs/postgresql.md.
LEAST = (
    "GRANT USAGE ON SCHEMA incumbent TO {}",
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA incumbent TO {}",
)


def test_a_role_with_the_least_rights_can_do_everything(postgres_server: PostgresServer) -> None:
    database = new_database(postgres_server)
    with party(make_role(postgres_server, database, "locker", *LEAST)) as one:
        granted = one.take(ask=Ask(10.0, "h", slot=Slot("s", 5), candidacy=5.0))
        one.refused(ask=Ask(10.0, "other", candidacy=5.0))
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        one.store.put(one.key, "pause", b"{}", None, soon())
        one.store.put(one.key, "pause", None, None, soon())
        assert one.store.scan("faults", one.key.name, soon())
        one.store.wait_change(one.key, one.refused().seen, soon(0.05))
        assert (
            one.store.give(one.key, one.claim, None, soon(), parting=Parting(slot="s"))
            == Released()
        )


def test_the_least_rights_are_the_docs() -> None:
    page = (ROOT / "docs" / "postgresql.md").read_text()
    for line in LEAST:
        assert line.format("app") in page


def test_the_least_rights_reach_nothing_but_the_functions(postgres_server: PostgresServer) -> None:
    database = new_database(postgres_server)
    url = make_role(postgres_server, database, "locker", *LEAST)
    tables = [
        name
        for (name,) in postgres_server.psql(
            "select tablename from pg_tables where schemaname = 'incumbent'", database
        )
    ]
    assert len(tables) >= 3
    with psycopg.connect(url, autocommit=True) as connection:
        for table in tables:
            for what in ("select 1 from", "delete from", "truncate"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f"{what} incumbent.{table}".encode())
        for what in ("create table incumbent.mine ()", "drop schema incumbent cascade"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(what.encode())


def test_functions_that_run_as_their_owner_do_not_look_where_others_may_write(
    postgres_server: PostgresServer,
) -> None:
    """A SECURITY DEFINER function without a search_path of its own runs what a caller planted."""
    found = postgres_server.psql(
        "select proname from pg_proc p join pg_namespace n on n.oid = pronamespace"
        " where nspname = 'incumbent' and prosecdef"
        " and not exists (select from unnest(proconfig) c where c like 'search_path=pg_catalog%')",
        new_database(postgres_server),
    )
    assert found == []


@pytest.mark.left(tiers.FORMS, "usage")
@pytest.mark.parametrize("grants", [(), LEAST[:1], LEAST[1:]], ids=["none", "usage", "execute"])
def test_missing_rights_are_final_and_said(
    postgres_server: PostgresServer, grants: tuple[str, ...]
) -> None:
    database = new_database(postgres_server)
    role = f"lacking{len(grants)}{'u' if 'USAGE' in str(grants) else 'x'}"
    url = make_role(postgres_server, database, role, *grants)
    refused_for_good(url, "GRANT")
    refused_by_the_tool(url, "GRANT")


def test_a_role_that_may_not_create_cannot_mend_and_is_told_so(
    postgres_server: PostgresServer,
) -> None:
    database = postgres_server.new_database()
    url = make_role(postgres_server, database, "locker")
    done = incumbent("-s", url, "doctor", "--fix")
    assert done.returncode == 69, done.stdout
    assert "permission denied" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_administrator_may_apply_the_file_with_psql(postgres_server: PostgresServer) -> None:
    import subprocess

    from tests.support.servers import find_server

    database = postgres_server.new_database()
    psql, url = find_server("psql"), postgres_server.url_of(database)
    done = subprocess.run(
        [psql, "-q", "-v", "ON_ERROR_STOP=1", url],
        check=False,
        input=schema(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with party(postgres_server.url_of(database)) as one:
        one.take()


# -- TLS


def test_tls_is_checked_when_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    ours, other = TlsFiles(tmp_path / "one"), TlsFiles(tmp_path / "two")
    with PostgresServer(tls=ours) as server:
        url = f"{server.url_of(new_database(server))}?sslmode=verify-full"
        with party(f"{url}&sslrootcert={ours.ca}") as one:
            one.take()
        refused_for_good(f"{url}&sslrootcert={other.ca}", "certificate verify failed", "authority")
        refused_for_good(f"{url}&sslrootcert={tmp_path}/none", "root certificate file")


def test_a_server_without_tls_is_refused_where_tls_is_asked_for(
    postgres_server: PostgresServer,
) -> None:
    refused_for_good(f"{postgres_server.url}?sslmode=require", "does not support SSL")

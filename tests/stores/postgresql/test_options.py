"""URLs of PostgreSQL databases, and pools: what they say, what is refused, what never shows."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import psycopg_pool
import pytest

from incumbent.errors import ConfigError
from incumbent.stores.postgresql import engine_from_object, open_postgresql
from incumbent.stores.postgresql.site import PostgresSite, Target
from incumbent.stores.postgresql.site import site_of_url as site
from incumbent.stores.url import engine_for_object, open_engine

SECRET = "pa55-never-shown"


def test_several_hosts_are_asked_one_by_one_and_must_be_able_to_write() -> None:
    found = site("postgresql://me@h1:5433,h2,[::1]:7/db?connect_timeout=3&sslmode=require")
    assert found.targets == (Target("h1", "5433"), Target("h2", ""), Target("::1", "7"))
    conninfo = found.conninfo(found.targets[0], "10.0.0.1").decode()
    for part in ("host=h1", "hostaddr=10.0.0.1", "port=5433", "dbname=db", "sslmode=require"):
        assert part in conninfo
    assert "target_session_attrs=read-write" in conninfo
    assert "connect_timeout" not in conninfo


def test_the_host_that_served_last_is_asked_first() -> None:
    found = site("postgresql://h1,h2,h3/db")
    found.prefer(found.targets[1])
    assert [target.host for target in found.targets] == ["h2", "h1", "h3"]


def test_our_options_are_ours_and_the_rest_is_libpqs() -> None:
    found = site(
        "postgres://h/db?restart_wait=2m&application_name=x%20y&target_session_attrs=read-write"
    )
    assert found.restart_wait == 120.0
    assert found.parameters["application_name"] == "x y"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://", "postgresql://"),
        (f"postgresql://me:{SECRET}@h1:1,h2:2/db", "postgresql://me:***@h1:1,h2:2/db"),
        ("postgres://me@h/d%20b?sslmode=disable", "postgresql://me@h/d b"),
        (f"postgresql://h/db?user=me&password={SECRET}", "postgresql://me:***@h/db"),
    ],
)
def test_people_see_no_password_and_no_options(given: str, shown: str) -> None:
    engine = open_engine(given)
    assert engine.url == shown
    assert SECRET not in repr(engine)


def test_the_password_can_come_from_elsewhere_and_wins() -> None:
    for url in ("postgresql://me:old@h/db", "postgresql://me@h/db"):
        found = site(url, "n@w/")
        assert found.parameters["password"] == "n@w/"
        assert found.where == "postgresql://me:***@h/db"


def test_no_secret_is_left_in_what_libpq_says() -> None:
    found = site(f"postgresql://me:{SECRET}@h/db?sslpassword=other-secret")
    assert found.clean(f"x {SECRET}\n y other-secret") == "x *** y ***"
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"postgresql:/me:{SECRET}@h/db", "malformed"),
        (f"postgresql://me:{SECRET}/@h/db", "malformed"),
        (f"postgresql://me:{SECRET}@x@h/db", "malformed"),
        (f"postgresql://me:{SECRET}#@h/db", "malformed"),
        (f"postgresql://me:{SECRET}%zz@h/db", "malformed"),
        (f"postgresql://me:{SECRET}@h:port/db", "port"),
        (f"postgresql://me:{SECRET}@h:99999/db", "port"),
        (f"postgresql://me:{SECRET}@h/db?{SECRET}", "malformed"),
        (f"postgresql://me:{SECRET}@h/db?sslmod=require", "^option sslmod is neither"),
        (f"postgresql://me:{SECRET}@h/db?wait=poll", "^option wait is neither"),
        (f"postgresql://me:{SECRET}@h/db?restart_wait=1&restart_wait=1", "twice"),
        (f"postgresql://me:{SECRET}@h/db?restart_wait=soon", "restart_wait"),
        (f"postgresql://me:{SECRET}@h/db?target_session_attrs=any", "read-write"),
        (f"postgresql://me:{SECRET}@h/db?replication=database", "replication"),
    ],
)
def test_what_cannot_be_a_store_is_refused_without_showing_a_secret(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        open_postgresql(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


# -- pools of the user's own


_PARAMETERS = {"user": "me", "password": SECRET, "dbname": "db"}


def _check(given: Any, hosts: list[str]) -> None:
    engine = engine_for_object(given)
    assert engine.url.startswith("postgresql://me:***@h1")
    found: PostgresSite = engine._site  # type: ignore[attr-defined]
    assert [target.host for target in found.targets] == hosts
    assert {name: found.parameters[name] for name in _PARAMETERS} == _PARAMETERS


def test_a_psycopg_pool_lends_its_address() -> None:
    text = f"host=h1,h2 port=1,2 user=me password={SECRET} dbname=db"
    for made_by in (psycopg_pool.ConnectionPool, psycopg_pool.NullConnectionPool):
        _check(made_by(text, open=False, kwargs={"autocommit": True}), ["h1", "h2"])
    _check(psycopg_pool.AsyncConnectionPool(text, open=False), ["h1", "h2"])


def test_a_sqlalchemy_engine_lends_its_address() -> None:
    import sqlalchemy  # here, as below: it is large, and each worker imports this file
    from sqlalchemy.ext.asyncio import create_async_engine

    url = f"postgresql+psycopg://me:{SECRET}@h1:5433/db"
    _check(sqlalchemy.create_engine(url), ["h1"])
    _check(create_async_engine(url), ["h1"])
    several = f"postgresql+psycopg://me:{SECRET}@/db?host=h1:1&host=h2:2"
    _check(sqlalchemy.create_engine(several), ["h1", "h2"])


def test_what_is_no_postgresql_is_refused() -> None:
    import sqlalchemy

    for given in (sqlalchemy.create_engine("sqlite://"), object()):
        with pytest.raises(ConfigError, match="SQLAlchemy"):
            engine_from_object(given)


def test_incumbent_alone_imports_no_driver() -> None:
    program = (
        "import sys, incumbent.stores.url, incumbent.stores.postgresql;"
        "sys.exit('psycopg' in sys.modules or 'sqlalchemy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

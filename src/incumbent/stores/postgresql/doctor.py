"""What a database says of itself, and what `doctor` makes of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from incumbent.durations import say_seconds
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.postgresql.dialect import Request
from incumbent.stores.postgresql.errors import OLDEST

__all__ = ["DIAGNOSE", "Finding", "findings"]

Finding = tuple[str, str, str]

DIAGNOSE: Final = Request(
    b"SELECT pg_catalog.json_build_object("
    b"'version', pg_catalog.current_setting('server_version'),"
    b"'user', current_user,"
    b"'standby', pg_catalog.pg_is_in_recovery(),"
    b"'read_only', pg_catalog.current_setting('transaction_read_only'),"
    b"'fsync', pg_catalog.current_setting('fsync'),"
    b"'commit', pg_catalog.current_setting('synchronous_commit'),"
    b"'standbys', pg_catalog.current_setting('synchronous_standby_names'),"
    b"'replicas', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication),"
    b"'timeout', (SELECT setting::int FROM pg_catalog.pg_settings"
    b" WHERE name = 'statement_timeout'),"
    b"'most', pg_catalog.current_setting('max_connections')::int,"
    b"'used', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity"
    b" WHERE backend_type = 'client backend'),"
    b"'encoding', pg_catalog.getdatabaseencoding(),"
    b"'pid', pg_catalog.pg_backend_pid(),"
    b"'wall', pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()))"
)


def findings(
    reply: bytes | None,
    hello: dict[str, Any],
    *,
    ttl: float,
    wait: float,
    named: bool,
    trip: float,
    wall: Callable[[], float],
    number: int,
    backend: int,
    encrypted: bool,
) -> list[Finding]:
    """Findings for `doctor`; `trip` is seconds of a round trip.

    `wait` is the restart wait in seconds, `named` whether the URL says it.
    """
    server = json.loads(reply or b"{}")
    return [
        _of_version(server, number),
        ("ok", f"the schema incumbent has version {hello['major']}.{hello['minor']}", ""),
        _of_writing(server),
        _of_pooler(server["pid"] == backend),
        _of_start(float(hello["up"]), wait),
        _of_restarts(ttl, named=named),
        _of_disk(server),
        _of_standbys(server),
        *_of_limits(server, ttl),
        _of_clock(abs(float(server["wall"]) - wall())),
        _of_trip(trip, ttl),
        ("ok", "TLS is used", "")
        if encrypted
        else ("ok", "TLS is not used", "across a network say sslmode=verify-full"),
    ]


def _found(what: str, advice: str, *, level: str = "warning", unless: bool) -> Finding:
    return ("ok", what, "") if unless else (level, what, advice)


def _of_version(server: dict[str, Any], number: int) -> Finding:
    what = f"PostgreSQL {server['version']}, as role {server['user']}"
    return _found(what, "version 13 or later is needed", level="error", unless=number >= OLDEST)


def _of_writing(server: dict[str, Any]) -> Finding:
    if server["standby"] or server["read_only"] == "on":
        return ("error", "it is read-only", "use the address of the primary, or name all hosts")
    return ("ok", "it is a primary", "")


def _of_pooler(direct: bool) -> Finding:
    if direct:
        return ("ok", "no pooler stands between: waiters are woken (LISTEN)", "")
    return ("warning", "a pooler stands between: waiters poll", "name the server itself")


def _of_start(up: float, wait: float) -> Finding:
    what = f"unbroken for {say_seconds(up)}, restart_wait {say_seconds(wait)}"
    return ("warning", f"{what}: it grants nothing yet", "wait") if up < wait else ("ok", what, "")


def _of_restarts(ttl: float, *, named: bool) -> Finding:
    if named or ttl <= TTL_DEFAULT:
        return ("ok", "after a crash or a promotion it waits for who may believe", "")
    what = f"a crash may take back the newest grants: their ttl of {say_seconds(ttl)} is not known"
    return ("warning", what, f"say ?restart_wait={say_seconds(ttl)} in every URL")


def _of_disk(server: dict[str, Any]) -> Finding:
    what = f"fsync {server['fsync']}, synchronous_commit {server['commit']}"
    if server["fsync"] != "on":
        advice = "set fsync = on: a crash of the machine may destroy the database"
        return ("warning", f"{what}: it may lose switches and slots", advice)
    if server["commit"] == "off":
        advice = "set synchronous_commit = on for this role"
        return ("warning", f"{what}: a crash may lose a switch or a slot", advice)
    return ("ok", f"{what}: switches and slots are on disk when they are answered", "")


def _of_standbys(server: dict[str, Any]) -> Finding:
    if not server["replicas"] or server["standbys"]:
        return ("ok", "no asynchronous standby is connected", "")
    what = f"{server['replicas']} asynchronous standbys: a failover may lose the last used slots"
    return (
        "warning",
        what,
        "set synchronous_standby_names, and synchronous_commit = remote_apply",
    )


def _of_limits(server: dict[str, Any], ttl: float) -> list[Finding]:
    timeout, encoding = server["timeout"] / 1000, server["encoding"]
    return [
        _found(
            f"statement_timeout is {say_seconds(timeout) if timeout else 'off'}",
            "requests may be cancelled: raise it for this role",
            unless=not 0 < timeout < ttl / 30,
        ),
        _found(
            f"{server['used']} of {server['most']} connections are used",
            "raise max_connections, or put a pooler before it",
            unless=server["used"] <= 0.9 * server["most"],
        ),
        _found(
            f"encoding {encoding}",
            "names of holders beyond it are refused",
            unless=encoding == "UTF8",
        ),
    ]


def _of_clock(apart: float) -> Finding:
    return _found(
        f"its clock and this machine's are {say_seconds(apart)} apart",
        "synchronise both: a jump of the server's clock moves every ttl",
        unless=apart <= 1,
    )


def _of_trip(trip: float, ttl: float) -> Finding:
    what = f"a round trip takes {say_seconds(trip)}"
    if trip > ttl / 30:
        return ("warning", f"{what}, much for a ttl of {say_seconds(ttl)}", "use a longer ttl")
    return ("ok", what, "")

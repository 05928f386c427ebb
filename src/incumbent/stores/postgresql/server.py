"""What a database says of itself, and what follows from it. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from incumbent.durations import say_seconds
from incumbent.errors import StoreUnavailable
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.postgresql.dialect import Request

__all__ = ["DIAGNOSE", "MINOR", "RECORD_FORMAT", "check_schema", "check_server", "findings"]

Finding = tuple[str, str, str]

RECORD_FORMAT: Final = 2
"""The schema's major version: clients and schemas of another one refuse each other."""

MINOR: Final = 0
_OLDEST: Final = 130_000

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


def check_server(number: int, where: str, *, proved: bool) -> None:
    """Raises StoreUnavailable for a server that is too old; `number` is libpq's (150004: 15.4)."""
    if number < _OLDEST:
        raise StoreUnavailable(
            f"{where} is PostgreSQL {number // 10_000}: version 13 or later is needed",
            permanent=not proved,
        )


def check_schema(said: dict[str, Any], where: str, *, proved: bool) -> None:
    """Raises StoreUnavailable for a schema that this release cannot use."""
    major, minor = said.get("major"), said.get("minor")
    if major is None or minor is None or (major, minor) < (RECORD_FORMAT, MINOR):
        raise StoreUnavailable(
            f"{where}: the schema incumbent has format {major}.{minor}, older than this release,"
            f" which needs {RECORD_FORMAT}.{MINOR}: stop the instances of the older release, then"
            " run `incumbent doctor --fix`; or use another database",
            permanent=not proved,
        )
    if major > RECORD_FORMAT:
        raise StoreUnavailable(
            f"{where}: the schema incumbent has format {major}.{minor}, newer than this release,"
            f" which knows {RECORD_FORMAT}.x: upgrade incumbent here, or use another database",
            permanent=not proved,
        )


def findings(
    answer: bytes | None,
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
    said = json.loads(answer or b"{}")
    return [
        _about(said, number),
        ("ok", f"the schema incumbent has version {hello['major']}.{hello['minor']}", ""),
        _about_writing(said),
        _about_pooler(said["pid"] == backend),
        _about_start(float(hello["up"]), wait),
        _about_wait(ttl, named=named),
        _about_disk(said),
        _about_standbys(said),
        _about_timeout(said["timeout"] / 1000, ttl),
        _about_room(said),
        _about_encoding(said["encoding"]),
        _about_clock(abs(float(said["wall"]) - wall())),
        _about_trip(trip, ttl),
        _about_tls(encrypted),
    ]


def _about_tls(encrypted: bool) -> Finding:
    if encrypted:
        return ("ok", "TLS is used", "")
    return ("ok", "TLS is not used", "across a network say sslmode=verify-full")


def _about(said: dict[str, Any], number: int) -> Finding:
    what = f"PostgreSQL {said['version']}, as role {said['user']}"
    if number < _OLDEST:
        return ("error", what, "version 13 or later is needed")
    return ("ok", what, "")


def _about_writing(said: dict[str, Any]) -> Finding:
    if said["standby"] or said["read_only"] == "on":
        return ("error", "it is read-only", "use the address of the primary, or name all hosts")
    return ("ok", "it is a primary", "")


def _about_pooler(direct: bool) -> Finding:
    if direct:
        return ("ok", "no pooler stands between: waiters are woken (LISTEN)", "")
    return (
        "warning",
        "a pooler stands between: waiters poll",
        "name the server itself",
    )


def _about_start(up: float, wait: float) -> Finding:
    what = f"unbroken for {say_seconds(up)}, restart_wait {say_seconds(wait)}"
    if up < wait:
        return ("warning", f"{what}: it grants nothing yet", "wait")
    return ("ok", what, "")


def _about_wait(ttl: float, *, named: bool) -> Finding:
    if named or ttl <= TTL_DEFAULT:
        return ("ok", "after a crash or a promotion it waits for who may believe", "")
    what = f"a crash may take back the newest grants: their ttl of {say_seconds(ttl)} is not known"
    return ("warning", what, f"say ?restart_wait={say_seconds(ttl)} in every URL")


def _about_standbys(said: dict[str, Any]) -> Finding:
    if said["replicas"] and not said["standbys"]:
        what = f"{said['replicas']} asynchronous standbys: a failover may lose the last used slots"
        advice = "set synchronous_standby_names, and synchronous_commit = remote_apply"
        return ("warning", what, advice)
    return ("ok", "no asynchronous standby is connected", "")


def _about_disk(said: dict[str, Any]) -> Finding:
    what = f"fsync {said['fsync']}, synchronous_commit {said['commit']}"
    if said["fsync"] != "on":
        advice = "set fsync = on: a crash of the machine may destroy the database"
        return ("warning", f"{what}: it may lose switches and slots", advice)
    if said["commit"] == "off":
        advice = "set synchronous_commit = on for this role"
        return ("warning", f"{what}: a crash may lose a switch or a slot", advice)
    return ("ok", f"{what}: switches and slots are on disk when they are answered", "")


def _about_timeout(timeout: float, ttl: float) -> Finding:
    if 0 < timeout < ttl / 30:
        return (
            "warning",
            f"statement_timeout is {say_seconds(timeout)}",
            "requests may be cancelled: raise it for this role",
        )
    return ("ok", f"statement_timeout is {say_seconds(timeout) if timeout else 'off'}", "")


def _about_room(said: dict[str, Any]) -> Finding:
    what = f"{said['used']} of {said['most']} connections are used"
    if said["used"] > 0.9 * said["most"]:
        return ("warning", what, "raise max_connections, or put a pooler before it")
    return ("ok", what, "")


def _about_encoding(encoding: str) -> Finding:
    if encoding == "UTF8":
        return ("ok", "encoding UTF8", "")
    return ("warning", f"encoding {encoding}", "names of holders beyond it are refused")


def _about_clock(apart: float) -> Finding:
    what = f"its clock and this machine's are {say_seconds(apart)} apart"
    if apart > 1:
        return ("warning", what, "synchronise both: a jump of the server's clock moves every ttl")
    return ("ok", what, "")


def _about_trip(trip: float, ttl: float) -> Finding:
    what = f"a round trip takes {say_seconds(trip)}"
    if trip > ttl / 30:
        return ("warning", f"{what}, much for a ttl of {say_seconds(ttl)}", "use a longer ttl")
    return ("ok", what, "")

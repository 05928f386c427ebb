"""The findings of `doctor` about a database."""

from __future__ import annotations

from typing import Any, Final

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.findings import (
    Finding,
    about_clock,
    about_start,
    about_trip,
    finding,
    grants_nothing,
    wait_after_restart,
)
from incumbent.stores.postgresql.errors import OLDEST, check_schema
from incumbent.stores.postgresql.exchange import HELLO, StatementRequest, read_object
from incumbent.stores.postgresql.site import PostgresSite
from incumbent.stores.postgresql.wire import PostgresWire

DIAGNOSE: Final = StatementRequest(
    b"SELECT pg_catalog.json_build_object("
    b"'version', pg_catalog.current_setting('server_version'),"
    b"'user', current_user,"
    b"'standby', pg_catalog.pg_is_in_recovery(),"
    b"'read_only', pg_catalog.current_setting('transaction_read_only'),"
    b"'fsync', pg_catalog.current_setting('fsync'),"
    b"'commit', pg_catalog.current_setting('synchronous_commit'),"
    b"'standbys', pg_catalog.current_setting('synchronous_standby_names'),"
    b"'replicas', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication),"
    # Hidden from roles without pg_read_all_stats: then none is counted.
    b"'asynchronous', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication"
    b" WHERE sync_state = 'async'),"
    b"'timeout', (SELECT setting::int FROM pg_catalog.pg_settings"
    b" WHERE name = 'statement_timeout'),"
    b"'most', pg_catalog.current_setting('max_connections')::int,"
    b"'used', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity"
    b" WHERE backend_type = 'client backend'),"
    b"'encoding', pg_catalog.getdatabaseencoding(),"
    b"'pid', pg_catalog.pg_backend_pid(),"
    b"'wall', pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()))"
)


async def diagnose(
    site: PostgresSite, ttl: float, until: float, wire: PostgresWire
) -> list[Finding]:
    """All findings of this connection. Raises StoreError, Broken, Mismatch, PostgresErrorReply."""
    hello = read_object(await wire.query(HELLO, until))
    check_schema(hello, site.where, served=True)
    began = clock.now()
    server = read_object(await wire.query(DIAGNOSE, until))
    trip = clock.now() - began
    return findings(server, hello, wire, ttl, site.restart_wait, trip, clock.wall())


def findings(
    server: dict[str, Any],
    hello: dict[str, Any],
    wire: PostgresWire,
    ttl: float,
    restart_wait: float | None,
    trip: float,
    wall: float,
) -> list[Finding]:
    """The findings for the server's replies; `trip`: seconds of a round trip, `wall`: our clock."""
    return [
        finding(
            wire.version >= OLDEST,
            f"PostgreSQL {server['version']}, as role {server['user']}",
            advice="version 13 or later is needed",
            level="error",
        ),
        ("ok", f"the schema incumbent has format {hello['format']}", ""),
        _about_writes(server),
        finding(
            server["pid"] == wire.backend,
            "no pooler stands between: waiters are woken (LISTEN)",
            "a pooler stands between: waiters poll",
            "name the server itself",
        ),
        about_start(
            "no crash for",
            float(hello["up"]),
            wait_after_restart(restart_wait, ttl, hello["longest"] / 1e6),
        ),
        finding(
            restart_wait is not None or ttl <= TTL_DEFAULT,
            "after a crash or a promotion it waits until no earlier holder can believe it leads",
            f"a crash may take back the newest grants: a ttl of {say_seconds(ttl)} is unknown then",
            f"say ?restart_wait={say_seconds(ttl)} in every URL",
        ),
        *_about_data(server),
        *_about_limits(server, ttl),
        about_clock(abs(float(server["wall"]) - wall)),
        about_trip(trip, ttl),
        ("ok", "TLS is used", "")
        if wire.encrypted
        else ("ok", "TLS is not used", "across a network say sslmode=verify-full"),
    ]


def _about_writes(server: dict[str, Any]) -> Finding:
    if not server["standby"] and server["read_only"] != "on":
        return ("ok", "it is a primary", "")
    advice = "use the address of the primary, or name all hosts"
    return grants_nothing("it is read-only", advice, level="error")


def _about_data(server: dict[str, Any]) -> list[Finding]:
    synced = server["fsync"] == "on"
    disk = f"fsync {server['fsync']}, synchronous_commit {server['commit']}"
    awaited = server["standbys"] and server["commit"] not in {"off", "local"}
    unawaited = server["asynchronous"] if awaited else server["replicas"]
    return [
        finding(
            synced and server["commit"] != "off",
            f"{disk}: switches and slots are on disk when they are answered",
            f"{disk}: a crash may lose a switch or a slot",
            "set synchronous_commit = on for this role"
            if synced
            else "set fsync = on: a crash of the machine may destroy the database",
        ),
        finding(
            not unawaited,
            "no asynchronous standby is connected",
            f"{unawaited} asynchronous standbys: a failover may lose the last used slots",
            "set synchronous_standby_names, and synchronous_commit = remote_apply",
        ),
    ]


def _about_limits(server: dict[str, Any], ttl: float) -> list[Finding]:
    timeout = server["timeout"] / 1000
    return [
        finding(
            not 0 < timeout < ttl / 30,
            f"statement_timeout is {say_seconds(timeout) if timeout else 'off'}",
            advice="requests may be cancelled: raise it for this role",
        ),
        finding(
            server["used"] <= 0.9 * server["most"],
            f"{server['used']} of {server['most']} connections are used",
            advice="raise max_connections, or put a pooler before it",
        ),
        finding(
            server["encoding"] == "UTF8",
            f"encoding {server['encoding']}",
            advice="use UTF8: it refuses names of holders that it cannot encode",
        ),
    ]

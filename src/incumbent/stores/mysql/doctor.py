"""The findings of `doctor` about a database."""

from __future__ import annotations

from typing import Any, Final

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import StoreError
from incumbent.policy import TTL_DEFAULT
from incumbent.protocol.port import run
from incumbent.stores import findings
from incumbent.stores.findings import Finding, found
from incumbent.stores.mysql.exchange import Exchange
from incumbent.stores.mysql.server import look
from incumbent.stores.mysql.site import Site
from incumbent.stores.mysql.statements import CLOCK
from incumbent.stores.mysql.wire import Wire
from incumbent.stores.plan import drive
from incumbent.stores.probing import probe
from incumbent.stores.register_store import replies

_STATE: Final = (
    f"SELECT {CLOCK},CURRENT_USER(),VERSION();"
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit','sync_binlog',"
    "'log_bin','max_connections','rpl_semi_sync_master_enabled','rpl_semi_sync_source_enabled',"
    "'wsrep_on','wsrep_sync_wait');"
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected','wsrep_cluster_size')"
)


def diagnose(site: Site, ttl: float, until: float, wire: Wire) -> list[Finding]:
    """Return all findings, over this connection. Raises ServerError, Broken."""
    try:
        look(wire, site.where, until)
        run(drive(probe(site.where), replies(Exchange(wire, site), until)))
    except StoreError as error:
        return [findings.grants_nothing(str(error), "see docs/mysql.md", level="error")]
    began = clock.now()
    replied = wire.ask(_STATE, until, writes=False)
    trip = clock.now() - began
    ((now, user, version),) = replied[0].rows
    known = dict(replied[1].rows) | dict(replied[2].rows)
    age, longest = (now - wire.facts.born) / 1e6, wire.facts.longest / 1e6
    wait = findings.wait_after_restart(site.restart_wait, ttl, longest)
    unknown = f"the ttl of {say_seconds(ttl)} of those who hold leases then may not be known"
    return [
        ("ok", f"{version}, as user {user}", ""),
        ("ok", "its tables are InnoDB's, and it compares what it should", ""),
        *_about_data(known),
        *_about_limits(known),
        findings.about_start("the same server and data for", age, wait),
        found(
            site.restart_wait is not None or ttl <= TTL_DEFAULT,
            "after a failover it waits for who may believe",
            f"after a failover {unknown}",
            f"say ?restart_wait={say_seconds(ttl)} in every URL",
        ),
        findings.about_clock(abs(now / 1e6 - clock.wall())),
        findings.about_trip(trip, ttl),
        found(True, "TLS is used" if wire.encrypted else "TLS is not used (ssl_mode)"),
    ]


def _about_data(known: dict[str, Any]) -> list[Finding]:
    flushed, logged, synced = (
        known.get(name, "") for name in ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog")
    )
    semi = "ON" in (known.get(f"rpl_semi_sync_{it}_enabled") for it in ("master", "source"))
    return [
        found(
            flushed == "1",
            what := f"innodb_flush_log_at_trx_commit = {flushed}",
            f"{what}: a power loss takes back the newest grants, and nobody notices",
            "set it to 1",
            level="error",
        ),
        found(
            logged != "ON" or synced == "1",
            "the binary log is as durable, or there is none",
            f"sync_binlog = {synced}: after a power loss replicas may have what this server lost",
            "set it to 1",
        ),
        found(
            logged != "ON" or semi,
            "there is no binary log, or a replica confirms each commit",
            "replicas are asynchronous: a failover may lose the newest grants and used slots",
            "set up semi-synchronous replication",
        ),
    ]


def _about_limits(known: dict[str, Any]) -> list[Finding]:
    most, used = int(known["max_connections"]), int(known["Threads_connected"])
    cluster = known.get("wsrep_on") == "ON"
    size, waits = known.get("wsrep_cluster_size"), known.get("wsrep_sync_wait") not in ("0", None)
    node = f"a node of a Galera cluster of {size}"
    return [
        found(
            used <= 0.9 * most,
            f"{used} of {most} connections are used",
            advice="raise max_connections",
        ),
        *(
            [found(waits, node, f"{node}, which may read what is past", "set wsrep_sync_wait = 1")]
            if cluster
            else []
        ),
    ]

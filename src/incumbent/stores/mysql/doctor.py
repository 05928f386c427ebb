"""The findings of `doctor` about a database."""

from __future__ import annotations

from typing import Any, Final

from incumbent.stores.findings import Finding, found
from incumbent.stores.mysql.wire import MysqlWire

_STATE: Final = (
    "SELECT CURRENT_USER(),VERSION();"
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit','sync_binlog',"
    "'log_bin','max_connections','rpl_semi_sync_master_enabled','rpl_semi_sync_source_enabled',"
    "'wsrep_on','wsrep_sync_wait');"
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected','wsrep_cluster_size')"
)


def diagnose(wire: MysqlWire, until: float) -> list[Finding]:
    """What MariaDB and MySQL are asked about. Raises ServerError, Broken."""
    asked, variables, status = wire.ask(_STATE, until, in_doubt=False)
    ((user, version),) = asked.rows
    known = dict(variables.rows) | dict(status.rows)
    return [
        ("ok", f"{version}, as user {user}", ""),
        ("ok", "its tables are InnoDB's", ""),
        *_about_data(known),
        *_about_limits(known),
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

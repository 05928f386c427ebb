"""The findings of `doctor` about a database."""

from __future__ import annotations

from typing import Any, Final

from incumbent.stores.findings import Finding, finding
from incumbent.stores.mysql.wire import MysqlWire

_STATE: Final = (
    "SELECT CURRENT_USER(),VERSION();"
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit','sync_binlog',"
    "'log_bin','max_connections','wsrep_on','wsrep_sync_wait');"
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected','wsrep_cluster_size',"
    "'Rpl_semi_sync_master_status','Rpl_semi_sync_source_status',"
    "'Rpl_semi_sync_master_clients','Rpl_semi_sync_source_clients')"
)
_DURABLE: Final = {"1", "3"}
"""Values of innodb_flush_log_at_trx_commit that sync at each commit: 3 is MariaDB's, and syncs more
than once (https://mariadb.com/kb/en/innodb-system-variables/)."""


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
    # By the status: where it is enabled, a commit waits for nobody if no such replica is connected.
    semi = any(
        known.get(f"Rpl_semi_sync_{it}_status") == "ON"
        and int(known.get(f"Rpl_semi_sync_{it}_clients", 0))
        for it in ("master", "source")
    )
    flush = f"innodb_flush_log_at_trx_commit = {flushed}"
    return [
        finding(
            flushed in _DURABLE,
            flush,
            f"{flush}: a power loss takes back the newest grants, and nobody notices",
            "set it to 1",
            level="error",
        ),
        finding(
            logged != "ON" or synced == "1",
            "the binary log is as durable, or there is none",
            f"sync_binlog = {synced}: after a power loss replicas may have what this server lost",
            "set it to 1",
        ),
        finding(
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
        finding(
            used <= 0.9 * most,
            f"{used} of {most} connections are used",
            advice="raise max_connections",
        ),
        *(
            [finding(waits, node, f"{node}, whose reads may be stale", "set wsrep_sync_wait = 1")]
            if cluster
            else []
        ),
    ]

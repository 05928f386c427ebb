"""What `doctor` makes of a database's settings, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from incumbent.stores.mysql.doctor import diagnose

GOOD = {
    "innodb_flush_log_at_trx_commit": "1", "log_bin": "ON", "sync_binlog": "1",
    "max_connections": "100", "wsrep_on": "OFF",
}  # fmt: skip
STATUS = {
    "Threads_connected": "7",
    "Rpl_semi_sync_master_status": "ON",
    "Rpl_semi_sync_master_clients": "1",
}


class Answers:
    """A connection whose server replies with the rows of a test."""

    def __init__(self, change: dict[str, str]) -> None:
        self._change = change

    def ask(self, *_: Any, **__: Any) -> list[Any]:
        variables = {name: self._change.get(name, value) for name, value in GOOD.items()}
        status = STATUS | {name: it for name, it in self._change.items() if name not in GOOD}
        return [
            type("Reply", (), {"rows": rows})
            for rows in ([("app@%", "10.11.6-MariaDB")], variables.items(), status.items())
        ]


def said(change: dict[str, str]) -> list[str]:
    wire: Any = Answers(change)
    return [f"{level}: {what}" for level, what, _ in diagnose(wire, 0.0) if level != "ok"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"innodb_flush_log_at_trx_commit": "3"},
        {
            "Rpl_semi_sync_master_status": "OFF",
            "Rpl_semi_sync_source_status": "ON",
            "Rpl_semi_sync_source_clients": "2",
        },
        {"log_bin": "OFF", "Rpl_semi_sync_master_status": "OFF"},
    ],
)
def test_a_server_that_loses_nothing_has_nothing_to_settle(change: dict[str, str]) -> None:
    assert said(change) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"innodb_flush_log_at_trx_commit": "2"}, "error: innodb_flush_log_at_trx_commit = 2"),
        ({"sync_binlog": "0"}, "warning: sync_binlog = 0"),
        ({"Rpl_semi_sync_master_status": "OFF"}, "warning: replicas are asynchronous"),
        ({"Rpl_semi_sync_master_clients": "0"}, "warning: replicas are asynchronous"),
        ({"Threads_connected": "99"}, "warning: 99 of 100 connections"),
        ({"wsrep_on": "ON", "wsrep_cluster_size": "3"}, "warning: a node of a Galera cluster of 3"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, str], found: str) -> None:
    (only,) = said(change)
    assert only.startswith(found)

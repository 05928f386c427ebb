"""Prints the tables of the speed page; `--write FILE` puts them between its markers."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from benchmarks.bursts import at_once_rows
from benchmarks.cron_agenda import agenda_rows
from benchmarks.cron_burst import burst_rows
from benchmarks.cron_claims import cron_rows
from benchmarks.cron_peers import cron_peer_rows
from benchmarks.etcd_leaders import etcd_leader_rows
from benchmarks.etcd_pairs import etcd_async_rows, etcd_rows
from benchmarks.harness import Figure, Row, one_core
from benchmarks.leaders import leader_rows
from benchmarks.mysql_pairs import mysql_async_rows, mysql_rows
from benchmarks.mysql_waiters import mysql_waiter_rows
from benchmarks.postgresql_pairs import postgresql_async_rows, postgresql_rows
from benchmarks.postgresql_waiters import postgresql_leader_rows
from benchmarks.quorum_pairs import quorum_async_rows, quorum_rows
from benchmarks.redis_pairs import async_many_rows, async_rows, sync_rows
from benchmarks.redis_shared import shared_rows
from benchmarks.redis_waiters import redis_waiter_rows
from benchmarks.renewals import renewal_rows
from benchmarks.shards import shard_rows
from benchmarks.sqlite_pairs import sqlite_rows
from benchmarks.startup import StartRow, start_rows
from benchmarks.waiters import waiter_rows

_PEERS = (
    *("redis", "hiredis", "python-redis-lock", "redlock-ng", "filelock"),
    *("pottery", "portalocker", "coredis"),
    *("httpx2", "tooz", "etcd3gw", "psycopg", "PALs", "sqlalchemy-dlock", "APScheduler"),
    "PyMySQL",
)
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> None:
    """Measure and print."""
    args = _arguments()
    text = ""
    for title, table in chain(_pairs(args), _processes(args)):
        text += f"### {title}\n\n{table}\n\n"
        if args.write:
            # Each time: a contender that fails after half an hour loses nothing.
            _write(args.write, text + _machine())


def _said(title: str, table: str) -> tuple[str, str]:
    print(f"### {title}\n\n{table}\n", flush=True)
    return title, table


def _pairs(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    turns, pairs = args.turns, args.pairs
    with one_core():
        on_postgresql, beyond_statements = postgresql_rows(turns, pairs)
        yield _said("Redis, blocking", pair_table(sync_rows(turns, pairs)))
        yield _said("Redis, asyncio, one task", pair_table(async_rows(turns, pairs)))
        yield _said("Redis, asyncio, 100 tasks", pair_table(async_many_rows(turns, 10 * pairs)))
        yield _said("Redis, held by several", pair_table(shared_rows(turns, pairs)))
        yield _said("Redis, quorum, blocking", pair_table(quorum_rows(turns, pairs)))
        yield _said("Redis, quorum, asyncio", pair_table(quorum_async_rows(turns, pairs)))
        yield _said("etcd, blocking", pair_table(etcd_rows(turns, pairs)))
        yield _said("etcd, asyncio, one task", pair_table(etcd_async_rows(turns, pairs)))
        yield _said("PostgreSQL, blocking", pair_table(on_postgresql))
        yield _said("PostgreSQL, beyond its own statements", pair_table(beyond_statements))
        on_asyncio = pair_table(postgresql_async_rows(turns, pairs))
        yield _said("PostgreSQL, asyncio, one task", on_asyncio)
        on_mariadb, beyond_statements = mysql_rows(turns, pairs)
        yield _said("MariaDB, blocking", pair_table(on_mariadb))
        yield _said("MariaDB, beyond its own statements", pair_table(beyond_statements))
        yield _said("MariaDB, asyncio, one task", pair_table(mysql_async_rows(turns, pairs)))
        yield _said("One host", pair_table(sqlite_rows(turns, pairs)))
        yield _said("Starting", start_table(start_rows(turns)))


def _processes(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    # Not on one core: two leaders and a server take turns there as nowhere else.
    turns, idle = args.turns, args.idle
    yield _said("Leaders, Redis", figure_table(leader_rows(turns, idle)))
    yield _said("Many, Redis", figure_table(renewal_rows(min(idle, 30))))
    yield _said("Shards, Redis", figure_table(shard_rows(min(idle, 30))))
    yield _said("Thousands at once", figure_table(at_once_rows(min(turns, 10))))
    yield _said("Waiting, Redis", figure_table(redis_waiter_rows(turns, idle)))
    yield _said("Waiting, each store", figure_table(waiter_rows(max(3, turns // 8))))
    yield _said("Many, etcd", figure_table(etcd_leader_rows(turns, idle)))
    yield _said("Leaders, PostgreSQL", figure_table(postgresql_leader_rows(turns)))
    yield _said("Waiting and renewals, MariaDB", figure_table(mysql_waiter_rows(turns)))
    yield _said("Jobs, Redis", figure_table(cron_rows(idle)))
    yield _said("Jobs, PostgreSQL", figure_table(cron_peer_rows()))
    yield _said("Jobs at once, Redis", figure_table(burst_rows(min(turns, 5))))
    yield _said("Schedules", figure_table(agenda_rows(min(turns, 5))))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--turns", type=int, default=41, help="turns of each contender (41)")
    parser.add_argument("--pairs", type=int, default=300, help="pairs a turn (300)")
    parser.add_argument("--idle", type=float, default=60, help="seconds of watching CPU (60)")
    parser.add_argument("--write", type=Path, help="a page with the two markers")
    return parser.parse_args()


def pair_table(rows: Iterable[Row]) -> str:
    """Acquire and release."""
    lines = ["| contender | us a pair | p50 ratio | CPU ratio | wanted |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.name} | {row.microseconds:.0f} | {row.wall_ratio:.2f} | {row.cpu_ratio:.2f} |"
        f" {_at_most(row.target, '')} |"
        for row in rows
    ]
    return "\n".join(lines)


def start_table(rows: Iterable[StartRow]) -> str:
    """Milliseconds over a bare interpreter."""
    lines = ["| command | ms over a bare interpreter | wanted |", "|---|---|---|"]
    lines += [
        f"| {row.name} | {row.extra_ms:.0f} | {_at_most(row.target_ms, ' ms')} |" for row in rows
    ]
    return "\n".join(lines)


def figure_table(rows: Iterable[Figure]) -> str:
    """Whole processes."""
    lines = ["| what | measured | wanted |", "|---|---|---|"]
    lines += [
        f"| {row.name} | {row.figure:.3g} {row.unit} | {_at_most(row.target, f' {row.unit}')} |"
        for row in rows
    ]
    return "\n".join(lines)


def _at_most(target: float | None, unit: str) -> str:
    return "" if target is None else f"at most {target:g}{unit}"


def _machine() -> str:
    peers = ", ".join(f"{name} {version(name)}" for name in _PEERS)
    return f"Python {platform.python_version()}, {platform.system()}; {peers}."


def _write(page: Path, text: str) -> None:
    before, _, rest = page.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    page.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}")


if __name__ == "__main__":
    main()

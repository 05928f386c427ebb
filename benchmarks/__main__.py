"""Prints the tables of the speed page; `--write FILE` puts them between its markers."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

from benchmarks.bursts import at_once_rows
from benchmarks.cron_agenda import agenda_rows
from benchmarks.cron_burst import burst_rows
from benchmarks.cron_claims import cron_rows
from benchmarks.cron_peers import cron_peer_rows
from benchmarks.etcd_leaders import etcd_leader_rows
from benchmarks.etcd_pairs import etcd_async_rows, etcd_rows
from benchmarks.harness import Figure, Row, one_core
from benchmarks.kubernetes_pairs import kubernetes_rows
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
    "kubernetes",
    "lightkube",
    "kr8s",
)
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


Table = tuple[str, Callable[[], str]]


def main() -> None:
    """Measure and print."""
    args = _arguments()
    with one_core():
        _measure(_pairs(args), args)
    # Not on one core: two leaders and a server take turns there as nowhere else.
    _measure(_processes(args), args)


def _measure(tables: Iterable[Table], args: argparse.Namespace) -> None:
    for title, measured in tables:
        if not any(word in title for word in args.only):
            continue
        text = f"### {title}\n\n{measured()}\n"
        print(text, flush=True)
        if args.write:
            # Each time: a contender that fails after half an hour loses nothing.
            _write(args.write, title, text)


def _pairs(args: argparse.Namespace) -> Iterator[Table]:
    turns, pairs = args.turns, args.pairs
    tables: dict[str, Callable[[], Iterable[Row]]] = {
        "Redis, blocking": lambda: sync_rows(turns, pairs),
        "Redis, asyncio, one task": lambda: async_rows(turns, pairs),
        "Redis, asyncio, 100 tasks": lambda: async_many_rows(turns, 10 * pairs),
        "Redis, held by several": lambda: shared_rows(turns, pairs),
        "Redis, quorum, blocking": lambda: quorum_rows(turns, pairs),
        "Redis, quorum, asyncio": lambda: quorum_async_rows(turns, pairs),
        "etcd, blocking": lambda: etcd_rows(turns, pairs),
        "etcd, asyncio, one task": lambda: etcd_async_rows(turns, pairs),
        "PostgreSQL, blocking": lambda: on_postgresql()[0],
        "PostgreSQL, beyond its own statements": lambda: on_postgresql()[1],
        "PostgreSQL, asyncio, one task": lambda: postgresql_async_rows(turns, pairs),
        "Kubernetes, blocking": lambda: kubernetes_rows(turns, pairs),
        "MariaDB, blocking": lambda: on_mariadb()[0],
        "MariaDB, beyond its own statements": lambda: on_mariadb()[1],
        "MariaDB, asyncio, one task": lambda: mysql_async_rows(turns, pairs),
        "One host": lambda: sqlite_rows(turns, pairs),
    }
    on_postgresql = cache(lambda: tuple(map(list, postgresql_rows(turns, pairs))))
    on_mariadb = cache(lambda: tuple(map(list, mysql_rows(turns, pairs))))
    for title, rows in tables.items():
        yield title, partial(_pair_table_of, rows)
    yield "Starting", lambda: start_table(start_rows(turns))


def _pair_table_of(rows: Callable[[], Iterable[Row]]) -> str:
    return pair_table(rows())


def _processes(args: argparse.Namespace) -> Iterator[Table]:
    turns, idle = args.turns, args.idle
    tables: dict[str, Callable[[], Iterable[Figure]]] = {
        "Leaders, Redis": lambda: leader_rows(turns, idle),
        "Many, Redis": lambda: renewal_rows(min(idle, 30)),
        "Shards, Redis": lambda: shard_rows(min(idle, 30)),
        "Thousands at once": lambda: at_once_rows(min(turns, 10)),
        "Waiting, Redis": lambda: redis_waiter_rows(turns, idle),
        "Waiting, each store": lambda: waiter_rows(max(3, turns // 8)),
        "Many, etcd": lambda: etcd_leader_rows(turns, idle),
        "Leaders, PostgreSQL": lambda: postgresql_leader_rows(turns),
        "Waiting and renewals, MariaDB": lambda: mysql_waiter_rows(turns),
        "Jobs, Redis": lambda: cron_rows(idle),
        "Jobs, PostgreSQL": cron_peer_rows,
        "Jobs at once, Redis": lambda: burst_rows(min(turns, 5)),
        "Schedules": lambda: agenda_rows(min(turns, 5)),
    }
    for title, rows in tables.items():
        yield title, partial(_figure_table_of, rows)


def _figure_table_of(rows: Callable[[], Iterable[Figure]]) -> str:
    return figure_table(rows())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--turns", type=int, default=41, help="turns of each contender (41)")
    parser.add_argument("--pairs", type=int, default=300, help="pairs a turn (300)")
    parser.add_argument("--idle", type=float, default=60, help="seconds of watching CPU (60)")
    parser.add_argument("--write", type=Path, help="a page with the two markers")
    parser.add_argument("--only", nargs="+", default=[""], help="words of the titles to measure")
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


def _write(page: Path, title: str, table: str) -> None:
    """Put the table in place of the one with its title, or behind all others."""
    before, _, rest = page.read_text().partition(_BEGIN)
    measured, _, after = rest.partition(_END)
    tables = measured.rpartition("\n\nPython ")[0] or measured
    parts = dict(_titled(part) for part in tables.strip().split("\n### "))
    parts[title] = table.partition("\n")[2].strip()
    text = "\n\n".join(f"### {name}\n\n{body}" for name, body in parts.items() if name)
    page.write_text(f"{before}{_BEGIN}\n{text}\n\n{_machine()}\n{_END}{after}")


def _titled(part: str) -> tuple[str, str]:
    name, _, body = part.removeprefix("### ").partition("\n")
    return name, body.strip()


if __name__ == "__main__":
    main()

"""What is known of each library, and the case of each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pytest

from tests.coming_from.sides import Both, Outcome
from tests.support.etcd import EtcdServer
from tests.support.servers import RedisServer

F = TypeVar("F", bound=Callable[[Both], None])


@dataclass(frozen=True)
class Servers:
    """Those that a row asks for are started."""

    request: pytest.FixtureRequest
    folder: Path

    @cached_property
    def redis(self) -> RedisServer:
        server: RedisServer = self.request.getfixturevalue("redis_server")
        return server

    @cached_property
    def three(self) -> list[RedisServer]:
        servers: list[RedisServer] = self.request.getfixturevalue("three_servers")
        return servers

    @cached_property
    def etcd(self) -> EtcdServer:
        server: EtcdServer = self.request.getfixturevalue("etcd_server")
        return server


@dataclass(frozen=True)
class Library:
    """How its column is run: what comes before the first row, and how somebody takes the lock."""

    theirs: Callable[[Servers], str]
    take: Outcome
    store: Callable[[Servers], str]
    ours: Callable[[Servers], str] = lambda servers: "pass"
    give: str = "lock.release()"
    commands: bool = False
    """Whether its rows are commands, which their cases start."""
    environment: str = ""
    """Of `environments`; "": the library is installed beside ours."""


LIBRARIES: dict[str, Library] = {}
CASES: dict[tuple[str, str], Callable[[Both], None]] = {}


def row(section: str, theirs: str) -> Callable[[F], F]:
    """The case of the row that has this code (or text) on their side."""

    def keep(case: F) -> F:
        assert (section, theirs) not in CASES
        CASES[section, theirs] = case
        return case

    return keep

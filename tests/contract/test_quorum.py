"""`redis+quorum://` keeps the contract on three real servers, each behind a network of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from incumbent import clock
from incumbent.model import Ask, Key
from incumbent.stores.quorum import open_quorum
from incumbent.stores.quorum.dialect import SCRIPTS
from incumbent.stores.quorum.engine import QuorumEngine
from incumbent.testing.contract import NetworkWorld, StoreContract
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server

_NODES = 3
_CHANGES = re.compile(rb"EVALSHA\r\n\$40\r\n(?!%b)[0-9a-f]{40}" % SCRIPTS["promise"].sha)


class QuorumWorld(NetworkWorld):
    """What happens to one server happens to all: the contract knows of no single ones."""

    def __init__(
        self, servers: list[RedisServer], proxies: list[FaultProxy], options: str = ""
    ) -> None:
        hosts = ",".join(f"127.0.0.1:{it.port}" for it in proxies)
        # Each world has networks of its own before the same servers. Not just any request: a new
        # connection first says who it is and loads the scripts, and what is only a promise changes
        # nothing.
        url = f"redis+quorum://{hosts}?members=contract{options}"
        super().__init__(open_quorum, url, proxies, _CHANGES)
        self._servers = servers

    def restart(self, *, empty: bool) -> None:
        # A majority of the same servers: with fewer there would be nothing to see.
        for server in self._servers[1:] if not empty else self._servers:
            server.restart(empty=empty)


@contextmanager
def _servers(options: list[str]) -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer(options)) for _ in range(_NODES)]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    with _servers([]) as made:
        # New and empty, all of them: the first client makes them a quorum.
        hosts = ",".join(f"127.0.0.1:{it.port}" for it in made)
        store = open_quorum(f"redis+quorum://{hosts}?members=contract&restart_wait=0").store()
        store.take(Key("contract", "first"), "0" * 32, Ask(1.0, "first"), clock.now() + 5)
        store.close()
        yield made


class TestQuorum(StoreContract):
    # A take is several requests of its client, and no client has two takes of a claim under way:
    # of two, each may count as a grant with a token of its own, of which the record keeps one.
    test_a_claim_that_is_taken_many_times_at_once_is_one_grant = None  # type: ignore[assignment]

    capabilities = QuorumEngine.capabilities
    hooks = NetworkWorld.hooks
    ttl = 0.4

    @pytest.fixture
    def world(self, servers: list[RedisServer]) -> Iterator[QuorumWorld]:
        with ExitStack() as stack:
            proxies = [stack.enter_context(FaultProxy(it.port)) for it in servers]
            # The servers are younger than the leases of this suite are long.
            yield QuorumWorld(servers, proxies, "&restart_wait=0")


_DURABLE = ["--appendonly", "yes", "--appendfsync", "always"]


class TestQuorumRestarts(StoreContract):
    """A majority is restarted with its data; all of them are, where they lose it."""

    # That a majority lost it is all that is known: no single restart ends a lease.
    test_a_wipe_ends_what_was_believed = None  # type: ignore[assignment]
    # Of servers that are old enough to grant at once: below.
    test_a_restart_ends_nothing_where_leases_survive_it = None  # type: ignore[assignment]

    capabilities = QuorumEngine.capabilities
    hooks = frozenset({"restart", "wipe", "restart_wait"})
    only = frozenset({"restart", "wipe"})
    ttl = 0.4

    @pytest.fixture
    def world(self) -> Iterator[QuorumWorld]:
        with _servers(_DURABLE) as made, ExitStack() as stack:
            proxies = [stack.enter_context(FaultProxy(it.port)) for it in made]
            yield QuorumWorld(made, proxies, "&restart_wait=2s")


class TestQuorumOutlivesRestarts(StoreContract):
    capabilities = QuorumEngine.capabilities
    hooks = frozenset({"restart"})
    only = frozenset({"restart"})
    test_a_pause_survives_a_restart = None  # type: ignore[assignment]  # as above
    test_the_token_grows_over_a_restart = None  # type: ignore[assignment]

    @pytest.fixture
    def world(self) -> Iterator[QuorumWorld]:
        with _servers(_DURABLE) as made, ExitStack() as stack:
            proxies = [stack.enter_context(FaultProxy(it.port)) for it in made]
            yield QuorumWorld(made, proxies, "&restart_wait=0")

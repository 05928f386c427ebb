"""A redis-py client or pool of the user's own, in place of a URL: its login, and nothing else."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.connection
import redis.connection

from incumbent import AsyncLock, Lock
from incumbent.errors import StoreUnavailable
from incumbent.model import Granted
from tests.stores.redis.world import ASK, Party, new_claim, own_party, soon
from tests.support.servers import RedisServer, TlsFiles

# Its types are only half there: as in a user's own code, it is not for a checker to find.
BLOCKING: Any = redis
ASYNC: Any = redis.asyncio


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password="sesame", unix_socket=True) as running:
        running.cli("ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all")
        yield running


class Login(redis.CredentialProvider):
    """A login that is asked for at each connection."""

    def get_credentials(self) -> tuple[str, str]:
        return "locker", "secret"


ODD: dict[str, Any] = {
    "decode_responses": True,
    "encoding": "latin-1",
    "protocol": 3,
    "health_check_interval": 1,
    "socket_timeout": 0.001,
    "socket_connect_timeout": 30,
    "socket_keepalive": True,
    "client_name": "theirs",
    "max_connections": 1,
}

Make = Callable[[RedisServer], Any]
CLIENTS: dict[str, Make] = {
    "a client with many options": lambda s: BLOCKING.Redis(port=s.port, password="sesame", **ODD),
    "an asynchronous one": lambda s: ASYNC.Redis(port=s.port, password="sesame", **ODD),
    "a client from a URL": lambda s: BLOCKING.Redis.from_url(s.url),
    "an asynchronous one from a URL": lambda s: ASYNC.Redis.from_url(s.url),
    "a user of its own": lambda s: BLOCKING.Redis(
        port=s.port, username="locker", password="secret"
    ),
    "a provider of credentials": lambda s: BLOCKING.Redis(port=s.port, credential_provider=Login()),
    "one connection only": lambda s: ASYNC.Redis(
        port=s.port, password="sesame", single_connection_client=True
    ),
    "a unix socket": lambda s: BLOCKING.Redis(
        unix_socket_path=str(s.socket_path), password="sesame"
    ),
    "an asynchronous unix socket": lambda s: ASYNC.Redis(
        unix_socket_path=str(s.socket_path), password="sesame"
    ),
    "a blocking pool": lambda s: BLOCKING.BlockingConnectionPool(
        port=s.port, password="sesame", max_connections=1, timeout=1
    ),
    "an asynchronous blocking pool": lambda s: ASYNC.BlockingConnectionPool(
        port=s.port, password="sesame", max_connections=1
    ),
}


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
def test_both_sides_log_in_as_the_client_does_and_leave_it_alone(
    server: RedisServer, make: Make
) -> None:
    client = make(server)
    pool: Any = getattr(client, "connection_pool", client)
    before = dict(pool.connection_kwargs)

    async def main(one: Party) -> None:
        outcome = await one.engine.async_store().take(one.key, one.claim, ASK, soon())
        assert isinstance(outcome, Granted)
        await one.engine.async_store().aclose()

    one = own_party(client, restart_wait=0)
    one.take()
    asyncio.run(main(one))
    one.store.close()
    assert pool.connection_kwargs == before
    assert "sesame" not in f"{one.engine!r}{one.engine.url}"


def test_a_client_over_tls_keeps_its_checks(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    with RedisServer(tls=files) as running:
        good = redis.Redis(port=running.port, ssl=True, ssl_ca_certs=str(files.ca))
        one = own_party(good, restart_wait=0)
        one.take()
        asyncio.run(one.take_async())
        one.store.close()
        # Another authority than the server's: it is not believed only because a client was given.
        strict = own_party(redis.Redis(port=running.port, ssl=True))
        with pytest.raises(StoreUnavailable) as caught:
            strict.take(new_claim())
        assert caught.value.permanent


def test_redis_py_is_needed_for_a_client_of_ones_own_only(server: RedisServer) -> None:
    """It takes longer to import than a lock takes altogether."""
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from incumbent import Lock\n"
        "with Lock('cold', store=sys.argv[1], namespace='faults', ttl=5): pass\n"
        "print(sorted({'asyncio', 'ssl'} & set(sys.modules)))\n"
    )
    url = f"{server.url}?restart_wait=0"
    command = [sys.executable, "-c", code, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


class OwnClient(redis.Redis):
    """What a user may have made of it."""


def test_a_lock_takes_a_client_in_place_of_a_url(redis_server: RedisServer) -> None:
    client, name = OwnClient(port=redis_server.port), secrets.token_hex(6)
    pool = redis.asyncio.ConnectionPool(port=redis_server.port)

    async def main() -> None:
        async with AsyncLock(name, store=pool, namespace="faults") as lease:
            lease.check()

    with Lock(name, store=client, namespace="faults", timeout=20) as lease:
        lease.check()
    asyncio.run(main())

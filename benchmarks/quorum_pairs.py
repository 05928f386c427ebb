"""One uncontended acquire and release on a quorum; the unit is the bare two commands to one server.

The floor is what any quorum has to pay: both commands sent to every server and then read from every
server, by connections of redis-py that do nothing else.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import redis
import redis.asyncio
from redlock import Redlock
from tests.support.servers import RedisServer

from benchmarks.harness import Contender, Row, compare
from incumbent import AsyncLock, Lock
from incumbent.model import Ask, Key
from incumbent.stores.quorum.dialect import SCRIPTS, QuorumDialect
from incumbent.stores.quorum.options import parse_quorum_url
from incumbent.stores.redis.records import Naming

__all__ = ["quorum_async_rows", "quorum_rows"]

_RELEASE = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""
_TTL_MS = 15_000
_WANTED = {3: 1.9, 5: 3.3}


def quorum_rows(turns: int, pairs: int) -> list[Row]:
    """Blocking clients, client and servers on one core."""
    with ExitStack() as stack:
        contenders: list[Contender] = []
        for count, wanted in _WANTED.items():
            servers = _servers(stack, count)
            ours = f"incumbent Lock, quorum of {count}: fenced, renewed"
            contenders += [
                Contender("bare SET NX PX + EVALSHA, redis-py, one server", _bare(servers)),
                Contender(f"floor of {count}: sent to all, read from all", _floor(servers)),
                Contender(f"the same {count} with incumbent's scripts", _scripts(servers)),
                Contender(ours, _ours(servers), wanted),
                Contender(f"redlock-ng, {count} servers", _redlock_ng(servers)),
            ][bool(contenders) :]
            if count == 3 and find_spec("pottery"):
                contenders.append(Contender("pottery Redlock, 3 servers", _pottery(servers)))
        return compare(contenders, turns, pairs)


def quorum_async_rows(turns: int, pairs: int) -> list[Row]:
    """One task, client and servers on one core; the unit is redis.asyncio's two commands."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with ExitStack() as stack:
        client = redis.asyncio.Redis(port=_servers(stack, 1)[0].port)
        sha = str(loop.run_until_complete(client.script_load(_RELEASE)))

        async def bare() -> None:
            value = os.urandom(16)
            await client.set("bare", value, nx=True, px=_TTL_MS)
            await client.evalsha(sha, 1, "bare", value)

        ours = [
            Contender(
                f"incumbent AsyncLock, quorum of {count}", _ours_async(_servers(stack, count))
            )
            for count in _WANTED
        ]
        unit = Contender("bare SET NX PX + EVALSHA, redis.asyncio, one server", bare)
        rows = compare([unit, *ours], turns, pairs)
        loop.run_until_complete(client.aclose())
    loop.close()
    return rows


def _servers(stack: ExitStack, count: int) -> list[RedisServer]:
    # Of its own for each quorum: a member of one refuses to be a member of another.
    return [stack.enter_context(RedisServer()) for _ in range(count)]


def _url(servers: Sequence[RedisServer]) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"redis+quorum://{hosts}?restart_wait=0"


def _ours(servers: Sequence[RedisServer]) -> Callable[[], None]:
    lock = Lock("pair", store=_url(servers), ttl=15)

    def pair() -> None:
        lock.acquire().release()

    return pair


def _ours_async(servers: Sequence[RedisServer]) -> Callable[[], Awaitable[None]]:
    lock = AsyncLock("pair", store=_url(servers), ttl=15)

    async def pair() -> None:
        await (await lock.acquire()).release()

    return pair


def _bare(servers: Sequence[RedisServer]) -> Callable[[], None]:
    client = redis.Redis(port=servers[0].port)
    sha = str(client.script_load(_RELEASE))

    def pair() -> None:
        value = os.urandom(16)
        client.set("bare", value, nx=True, px=_TTL_MS)
        client.evalsha(sha, 1, "bare", value)

    return pair


def _floor(servers: Sequence[RedisServer]) -> Callable[[], None]:
    links: list[Any] = [_connection(server) for server in servers]
    (sha,) = {str(redis.Redis(port=server.port).script_load(_RELEASE)) for server in servers}

    def both(*command: object) -> None:
        # Packed once, as whoever cares for speed would.
        packed = links[0].pack_command(*command)
        for link in links:
            link.send_packed_command(packed)
        for link in links:
            link.read_response()

    def pair() -> None:
        value = os.urandom(16)
        both("SET", "floor", value, "NX", "PX", _TTL_MS)
        both("EVALSHA", sha, 1, "floor", value)

    return pair


def _scripts(servers: Sequence[RedisServer]) -> Callable[[], None]:
    """What the servers cost: the very requests of the quorum, without anything that decides."""
    links: list[Any] = [_connection(server) for server in servers]
    for server in servers:
        for script in SCRIPTS.values():
            redis.Redis(port=server.port).script_load(script.text.decode())
    members = parse_quorum_url(_url(servers)).members
    dialect, ask = QuorumDialect(Naming(None), members, 0.0, "here"), Ask(15.0, "scripts")
    key, claim = Key("default", "scripts"), os.urandom(16).hex()
    found = dialect.found((time.time_ns() // 1000) + 1_000_000)

    def both(request: bytes) -> None:
        for link in links:
            link.send_packed_command([request])
        for link in links:
            link.read_response()

    # The markers as a new cluster's first client leaves them.
    both(found)

    def pair() -> None:
        ballot = time.time_ns() // 1000
        both(dialect.take(key, claim, ask, ballot))
        both(dialect.give(key, claim, ballot, ballot))

    return pair


def _connection(server: RedisServer) -> Any:
    kind: Any = redis.Connection
    return kind(port=server.port)


def _redlock_ng(servers: Sequence[RedisServer]) -> Callable[[], None]:
    redlock = Redlock([server.url for server in servers])

    def pair() -> None:
        lock = redlock.acquire("redlock-ng", _TTL_MS)
        if lock is None:
            raise RuntimeError("redlock-ng did not get its own lock")
        redlock.release(lock)

    return pair


def _pottery(servers: Sequence[RedisServer]) -> Callable[[], None]:
    pottery = import_module("pottery")
    masters = {redis.Redis(port=server.port) for server in servers}

    def pair() -> None:
        lock = pottery.Redlock(key="pottery", masters=masters, auto_release_time=15)
        lock.acquire()
        lock.release()

    return pair

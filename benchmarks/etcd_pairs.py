"""One uncontended acquire and release on etcd; the unit is the gateway itself.

The floor sends as many requests as ours does (counted at the server), as ready-made bytes on one
bare keep-alive socket: create-if-absent on a lease that is there already, and delete-if-mine. The
same two by a client of the standard library and by httpx2 tell what a client costs.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable
from dataclasses import replace

import etcd3gw
import httpx2
import tooz.coordination
from tests.support.etcd import EtcdServer

from benchmarks.etcd_gateway import Gateway, coded, create, delete, request
from benchmarks.harness import Contender, Row, compare
from incumbent import AsyncLock, Lock

__all__ = ["etcd_async_rows", "etcd_rows"]

_TTL = 15
_COUNTED = 20


def etcd_rows(turns: int, pairs: int) -> list[Row]:
    """Blocking clients, client and server on one core."""
    with EtcdServer() as server, Gateway(server.port) as bare:
        ours = Lock("pair", store=server.store_url(), ttl=_TTL)
        coordinator = tooz.coordination.get_coordinator(
            f"etcd3+http://127.0.0.1:{server.port}?api_version=v3", b"bench"
        )
        coordinator.start()
        theirs = coordinator.get_lock(b"tooz")
        gw = etcd3gw.client(host="127.0.0.1", port=server.port, api_path="/v3/")

        def incumbent_lock() -> None:
            ours.acquire().release()

        def tooz_lock() -> None:
            theirs.acquire()
            theirs.release()

        def etcd3gw_lock() -> None:
            lock = gw.lock("etcd3gw", ttl=_TTL)
            lock.acquire()
            lock.release()

        contenders = [
            Contender("bare gateway, as many requests", _floor(server, bare, incumbent_lock)),
            Contender("incumbent Lock: fenced, renewed", incumbent_lock, 1.2),
            Contender("the two barest by http.client", _by_http_client(server, bare)),
            Contender("the two barest by httpx2", _by_httpx(server, bare)),
            Contender("etcd's lock service, bare", _lock_service(bare)),
            Contender("tooz etcd3gw", tooz_lock),
            Contender("etcd3gw Lock", etcd3gw_lock),
        ]
        named = [_with_requests(server, contender) for contender in contenders]
        rows = compare(named, turns, pairs)
        coordinator.stop()
    return rows


def etcd_async_rows(turns: int, pairs: int) -> list[Row]:
    """One task, client and server on one core."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with EtcdServer() as server, Gateway(server.port) as bare:
        ours = AsyncLock("pair", store=server.store_url(), ttl=_TTL)

        async def incumbent_lock() -> None:
            await (await ours.acquire()).release()

        floor = _floor(server, bare, lambda: loop.run_until_complete(incumbent_lock()))
        rows = compare(
            [
                Contender("bare gateway, as many requests, blocking", floor),
                Contender("incumbent AsyncLock: fenced, renewed", incumbent_lock, 1.2),
            ],
            turns,
            pairs,
        )
    loop.close()
    return rows


def _floor(server: EtcdServer, bare: Gateway, ours: Callable[[], object]) -> Callable[[], None]:
    wanted = round(_requests_a_pair(server, ours))
    lease = str(bare.ask("lease/grant", {"TTL": 3600})["ID"])
    both = [request("kv/txn", create("bare", lease)), request("kv/txn", delete("bare"))]
    # What ours may need beyond the two is of the cheapest kind: a lease and its end.
    extra = [request("kv/range", {"key": coded("bare")})] * max(0, wanted - len(both))
    sent = [*both, *extra]

    def pair() -> None:
        for data in sent:
            bare.send(data)

    return pair


def _barest(bare: Gateway, key: str) -> list[dict[str, object]]:
    return [create(key, str(bare.ask("lease/grant", {"TTL": 3600})["ID"])), delete(key)]


def _by_http_client(server: EtcdServer, bare: Gateway) -> Callable[[], None]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    bodies = _barest(bare, "http.client")

    def pair() -> None:
        for body in bodies:
            connection.request("POST", "/v3/kv/txn", json.dumps(body))
            json.loads(connection.getresponse().read())

    return pair


def _by_httpx(server: EtcdServer, bare: Gateway) -> Callable[[], None]:
    client = httpx2.Client(base_url=server.http)
    bodies = _barest(bare, "httpx2")

    def pair() -> None:
        for body in bodies:
            client.post("/v3/kv/txn", json=body).json()

    return pair


def _lock_service(bare: Gateway) -> Callable[[], None]:
    def pair() -> None:
        lease = bare.ask("lease/grant", {"TTL": _TTL})["ID"]
        bare.ask("lock/lock", {"name": coded("service"), "lease": lease})
        # The end of the lease is the end of the lock; a release alone would leave the lease.
        bare.ask("lease/revoke", {"ID": lease})

    return pair


def _with_requests(server: EtcdServer, contender: Contender) -> Contender:
    count = _requests_a_pair(server, contender.work)
    return replace(contender, name=f"{contender.name} ({count:.2g} requests)")


def _requests_a_pair(server: EtcdServer, pair: Callable[[], object]) -> float:
    # The first ones make a session, and that is not what a pair costs.
    for _ in range(_COUNTED):
        pair()
    before = sum(server.requests().values())
    for _ in range(_COUNTED):
        pair()
    return (sum(server.requests().values()) - before) / _COUNTED

"""Servers that have been served for a minute already, so that no test waits for them."""

from __future__ import annotations

import redis

from incumbent import clock
from incumbent.stores.redis import open_store
from incumbent.stores.redis.incarnation import read_marker
from tests.support.servers import RedisServer

__all__ = ["pretend_age"]


def pretend_age(
    url: str, *servers: RedisServer, seconds: float = 60.0, ahead: float | None = None
) -> None:
    """Have the markers of the servers behind `url` say that they were written so long ago.

    Tokens are those of the clock then; or as in the first minute of a server, `ahead` of it.
    """
    floor = 0 if ahead is None else int((clock.wall() + ahead) * 1e6)
    store = open_store(f"{url}{'&' if '?' in url else '?'}restart_wait=0").store()
    store.scan("nothing", "", clock.now() + 5)
    store.close()
    for server in servers:
        with redis.Redis(port=server.port, password=server.password) as client:
            for key in client.scan_iter(match="incumbent:{*}:server*", count=1000):
                mark = read_marker(client.get(key), "here", key.decode())
                assert mark is not None
                us = int(seconds * 1e6)
                older = mark._replace(
                    since=mark.since - us, written_at=mark.written_at - us, floor=floor
                )
                client.set(key, older.text)

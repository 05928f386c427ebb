"""Logging in to a Redis server: which requests are sent, and what their replies mean."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.stores.redis import aio, sync
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.site import RedisSite

SECRET = "s3kr%t"
OK = b"+OK\r\n"
NAME = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$9\r\nincumbent\r\n"


class Server:
    """Answers the first bytes of each connection with the same reply, and closes it."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with link:
                self.requests.append(link.recv(4096))
                link.sendall(self._reply)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def server(reply: bytes) -> Iterator[Server]:
    running = Server(reply)
    try:
        yield running
    finally:
        running.close()


def blocking(site: RedisSite) -> None:
    sync.dial(site, clock.now() + 5, sync.RedisWire).close()


def on_asyncio(site: RedisSite) -> None:
    async def main() -> None:
        (await aio.dial(site, clock.now() + 5)).close()

    asyncio.run(main())


SIDES = pytest.mark.parametrize("connect", [blocking, on_asyncio])
Connect = Callable[[RedisSite], None]


class Provider:
    def get_credentials(self) -> tuple[str, str]:
        return "locker", SECRET

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


def auth(*words: str) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in ("AUTH", *words)]
    return b"*%d\r\n" % len(parts) + b"".join(parts)


@SIDES
@pytest.mark.parametrize(
    ("given", "requests"),
    [
        ({}, [NAME]),
        ({"db": 3}, [NAME, b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n"]),
        ({"password": SECRET}, [auth(SECRET), NAME]),
        ({"username": "me", "password": SECRET}, [auth("me", SECRET), NAME]),
        ({"username": "me"}, [auth("me", ""), NAME]),
        ({"credentials": Provider(), "password": "other"}, [auth("locker", SECRET), NAME]),
    ],
)
def test_a_login_is_one_round_trip(
    connect: Connect, given: dict[str, Any], requests: list[bytes]
) -> None:
    with server(OK * len(requests)) as running:
        connect(RedisSite(RedisTarget("127.0.0.1", running.port, **given), "here"))
    assert running.requests == [b"".join(requests)]


@SIDES
@pytest.mark.parametrize(
    ("replies", "permanent"),
    [
        (b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", True),
        (b"-ERR AUTH <password> called without any password configured for the default\r\n", True),
        (OK + b"-NOAUTH Authentication required.\r\n", True),
        (OK + b"-NOPERM User me has no permissions to run the 'client|setname' command\r\n", True),
        (OK + OK + b"-ERR DB index is out of range\r\n", True),
        (OK + OK + b"-ERR SELECT is not allowed in cluster mode\r\n", True),
        (b"-ERR max number of clients reached\r\n", False),
        (b"-DENIED Redis is running in protected mode\r\n", False),
        (b"-LOADING Redis is loading the dataset in memory\r\n", False),
    ],
)
def test_the_first_error_is_the_reason_and_keeps_the_secret(
    connect: Connect, replies: bytes, permanent: bool
) -> None:
    reason = replies.decode().partition("-")[2].strip()
    with server(replies) as running:
        target = RedisTarget("127.0.0.1", running.port, db=3, username="me", password=SECRET)
        with pytest.raises(StoreUnavailable) as caught:
            connect(RedisSite(target, "here"))
        assert reason in str(caught.value)
        assert caught.value.permanent is permanent
        # A server that has served this process may come to its senses.
        with pytest.raises(StoreUnavailable) as caught:
            connect(RedisSite(target, "here", served=True))
        assert not caught.value.permanent


@SIDES
def test_an_error_that_quotes_the_password_is_masked(connect: Connect) -> None:
    with (
        server(f"-ERR unknown command, with args beginning with: {SECRET}\r\n".encode()) as running,
        pytest.raises(StoreUnavailable) as caught,
    ):
        connect(RedisSite(RedisTarget("127.0.0.1", running.port, password=SECRET), "here"))
    assert SECRET not in str(caught.value)
    assert "***" in str(caught.value)


@SIDES
@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_reply_is_unavailable(connect: Connect, reply: bytes) -> None:
    with server(reply) as running, pytest.raises(StoreUnavailable) as caught:
        connect(RedisSite(RedisTarget("127.0.0.1", running.port), "here"))
    assert not caught.value.permanent


def test_a_provider_that_hangs_holds_nobody_up() -> None:
    over = threading.Event()

    class Hung:
        def get_credentials(self) -> tuple[str]:
            over.wait(60)
            return (SECRET,)

        async def get_credentials_async(self) -> tuple[str]:
            await asyncio.sleep(20)
            return (SECRET,)

    async def main() -> None:
        await aio.dial(site, clock.now() + 0.2)

    with server(OK) as running:
        site = RedisSite(RedisTarget("127.0.0.1", running.port, credentials=Hung()), "here")
        with pytest.raises(StoreUnavailable, match="in time"):
            sync.dial(site, clock.now() + 0.2, sync.RedisWire)
        with pytest.raises(StoreUnavailable, match="in time"):
            asyncio.run(main())
        over.set()


@SIDES
def test_a_provider_that_fails_is_unavailable(connect: Connect) -> None:
    class Failing(Provider):
        def get_credentials(self) -> tuple[str, str]:
            raise KeyError("no token")

    with server(OK) as running, pytest.raises(StoreUnavailable, match="no token"):
        connect(RedisSite(RedisTarget("127.0.0.1", running.port, credentials=Failing()), "here"))

"""`rediss://`: certificates are checked, on both sides, and deadlines hold under TLS too."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import Gone, Refused, Released
from incumbent.net.tls import Tls
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.pace import BUSY, lasted
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer, TlsFiles

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files: TlsFiles) -> Iterator[RedisServer]:
    with RedisServer(tls=files) as running:
        yield running


def options(files: TlsFiles) -> str:
    return f"restart_wait=0&ca={files.ca}"


def test_both_sides_take_and_give_over_tls(server: RedisServer, files: TlsFiles) -> None:
    async def main(one: Party) -> None:
        granted = await one.take_async()
        store = one.engine.async_store()
        assert await store.give(one.key, one.claim, granted.token, soon()) == Released()

    with party(server.url, options(files)) as one:
        token = one.take().token
        assert isinstance(one.refused(), Refused)
        assert one.store.give(one.key, one.claim, token, soon()) == Released()
        asyncio.run(main(one))


def test_a_file_of_certificates_that_does_not_exist_is_no_outage() -> None:
    with party("rediss://127.0.0.1:1", "restart_wait=0&ca=/nowhere/ca.pem") as one:
        with pytest.raises(StoreUnavailable, match=r"/nowhere/ca\.pem") as blocking:
            one.take()
        with pytest.raises(StoreUnavailable, match=r"/nowhere/ca\.pem") as awaiting:
            asyncio.run(one.take_async())
    assert blocking.value.permanent
    assert awaiting.value.permanent


def test_a_name_is_checked_and_accepted_if_it_is_in_the_certificate(
    server: RedisServer, files: TlsFiles
) -> None:
    with party(f"rediss://localhost:{server.port}", options(files)) as one:
        one.take()
        asyncio.run(one.take_async())


def test_a_server_of_another_authority_is_refused_for_good(
    server: RedisServer, tmp_path: Path
) -> None:
    with party(server.url, options(TlsFiles(tmp_path))) as one:
        with pytest.raises(StoreUnavailable, match="certificate") as caught:
            one.take()
        assert caught.value.permanent
        with pytest.raises(StoreUnavailable, match="certificate") as caught:
            asyncio.run(one.take_async())
        assert caught.value.permanent


def test_a_certificate_for_another_name_is_refused(
    server: RedisServer, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = socket.getaddrinfo

    def point_here(host: Any, *rest: Any, **more: Any) -> Any:
        return really("127.0.0.1" if host == "other.example" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", point_here)
    with party(f"rediss://other.example:{server.port}", options(files)) as one:
        with pytest.raises(StoreUnavailable, match=r"certificate|other\.example"):
            one.take()
        with pytest.raises(StoreUnavailable, match=r"certificate|other\.example"):
            asyncio.run(one.take_async())


def test_a_server_without_tls_is_unavailable(redis_server: RedisServer, files: TlsFiles) -> None:
    url = redis_server.url.replace("redis://", "rediss://")
    with party(url, options(files)) as one, pytest.raises(StoreUnavailable):
        one.take(within=1.0)


def test_a_client_certificate_is_shown_where_it_is_wanted(files: TlsFiles) -> None:
    shown = f"&cert={files.cert}&cert_key={files.key}"
    with RedisServer(tls=files) as strict:
        strict.cli("CONFIG", "SET", "tls-auth-clients", "yes")
        with party(strict.url, options(files)) as one, pytest.raises(StoreUnavailable):
            one.take()
        with party(strict.url, options(files) + shown) as one:
            one.take()
            asyncio.run(one.take_async())


@contextmanager
def insisting(files: TlsFiles) -> Iterator[int]:
    """A port where a certificate is wanted. The server keeps a connection that it has refused."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.ca))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.cert, files.key)
    refused: list[ssl.SSLSocket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                link, _ = listener.accept()
                secured = context.wrap_socket(link, server_side=True, do_handshake_on_connect=False)
                refused.append(secured)
                with suppress(ssl.SSLError):
                    secured.do_handshake()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    for link in refused:
        link.close()


def test_an_authority_that_is_replaced_counts_at_the_next_connection(
    files: TlsFiles, tmp_path: Path
) -> None:
    tls = Tls(ca_certs=str(tmp_path / "ca.pem"))
    with pytest.raises(FileNotFoundError):
        tls.context()
    (tmp_path / "ca.pem").write_text(files.ca.read_text() * 2)
    before = tls.context()
    assert tls.context() is before
    (tmp_path / "ca.pem").write_text(files.ca.read_text())
    assert tls.context() is not before


def test_a_server_that_wants_a_certificate_refuses_for_good(files: TlsFiles) -> None:
    with insisting(files) as port, party(f"rediss://127.0.0.1:{port}", options(files)) as one:
        with pytest.raises(StoreUnavailable, match="certificate") as caught:
            one.take()
        assert caught.value.permanent
        with pytest.raises(StoreUnavailable, match="certificate") as caught:
            asyncio.run(one.take_async())
        assert caught.value.permanent


def test_a_black_hole_under_tls_keeps_the_deadline(server: RedisServer, files: TlsFiles) -> None:
    with (
        FaultProxy(server.port) as proxy,
        party(f"rediss://127.0.0.1:{proxy.port}", options(files)) as one,
    ):
        one.take()
        proxy.blackhole()
        for error in (OutcomeUnknown, StoreUnavailable):
            began = clock.now()
            with pytest.raises(error):
                one.take(within=0.8)
            assert lasted(began, 0.75, 0.8 + BUSY)


def test_a_connection_that_the_server_closed_under_tls_is_no_error(
    server: RedisServer, files: TlsFiles
) -> None:
    with party(server.url, options(files)) as one:
        granted = one.take()
        server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Gone()
        one.take(new_claim())

"""Client certificates, and TLS to sentinels and to the nodes of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Gone, Released, Renewal, Renewed
from tests.stores.party import WITHIN
from tests.stores.redis.world import Party, party, soon
from tests.support.pace import took
from tests.support.redis_cluster import ClusterNode
from tests.support.redis_sentinels import SERVICE, SentinelServer
from tests.support.servers import RedisServer, TlsFiles
from tests.support.waiting import eventually

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Made by another authority."""
    return TlsFiles(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="module")
def strict(files: TlsFiles) -> Iterator[RedisServer]:
    """A server that wants to see a certificate of its clients."""
    with RedisServer(tls=files) as running:
        running.cli("CONFIG", "SET", "tls-auth-clients", "yes")
        yield running


def options(files: TlsFiles, shown: TlsFiles | None = None) -> str:
    mine = f"&cert={shown.cert}&cert_key={shown.key}" if shown else ""
    return f"restart_wait=0&ca={files.ca}{mine}"


def everything(one: Party) -> None:
    granted = one.take()
    assert asyncio.run(one.take_async()) == granted
    renewal = Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)
    assert one.store.renew([renewal], soon()) == [Renewed()]
    assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
    assert one.store.give(one.key, one.claim, granted.token, soon()) == Gone()


def test_a_certificate_that_the_server_trusts_opens_both_sides(
    strict: RedisServer, files: TlsFiles
) -> None:
    with party(strict.url, options(files, files)) as one:
        everything(one)


def test_a_certificate_that_the_server_does_not_trust_is_unavailable_not_held(
    strict: RedisServer, files: TlsFiles, strangers: TlsFiles
) -> None:
    for shown in (None, strangers):
        with party(strict.url, options(files, shown)) as one:
            takes: list[Callable[[], object]] = [one.take, lambda: asyncio.run(one.take_async())]
            for take in takes:
                began = clock.now()
                with pytest.raises(StoreUnavailable) as caught:
                    take()
                assert took(began) < WITHIN / 2
                # The server may also hang up before it says why.
                assert caught.value.permanent == ("ALERT" in str(caught.value))


@pytest.mark.parametrize("what", ["cert", "ca"])
def test_a_file_that_is_not_there_is_named(
    strict: RedisServer, files: TlsFiles, tmp_path: Path, what: str
) -> None:
    missing = str(tmp_path / "no.crt")
    right = str(files.cert) if what == "cert" else str(files.ca)
    with party(strict.url, options(files, files).replace(right, missing)) as one:
        with pytest.raises(StoreUnavailable, match=r"No such file|no\.crt"):
            one.take()
        with pytest.raises(StoreUnavailable, match=r"No such file|no\.crt"):
            asyncio.run(one.take_async())


def test_sentinels_and_their_master_are_reached_by_tls(
    files: TlsFiles, strangers: TlsFiles
) -> None:
    with RedisServer(tls=files) as master:
        lines = [f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 1"]
        with SentinelServer(lines, tls=files) as sentinel:
            eventually(lambda: "status=ok" in sentinel.cli("INFO", "sentinel"))
            url = f"rediss+sentinel://{sentinel.address}/{SERVICE}"
            with party(url, options(files)) as one:
                everything(one)
            with party(url, options(strangers)) as one:
                with pytest.raises(StoreUnavailable, match="certificate") as caught:
                    one.take()
                assert caught.value.permanent


def test_the_nodes_of_a_cluster_are_reached_by_tls(files: TlsFiles, strangers: TlsFiles) -> None:
    with ClusterNode(["--tls-cluster", "yes"], tls=files) as node:
        node.cli("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        eventually(lambda: node.state("cluster_state") == "ok")
        with party(f"rediss+cluster://{node.address}", options(files)) as one:
            everything(one)
        with party(f"rediss+cluster://{node.address}", options(strangers)) as one:
            with pytest.raises(StoreUnavailable, match="certificate") as caught:
                one.take()
            assert caught.value.permanent

"""What is read of a redis-py client, and which clients are refused. No server is asked."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

from incumbent.errors import ConfigError
from incumbent.stores.redis import engine_from_client
from incumbent.stores.redis.options import read_client

SECRET = "s3kr%t"
HERE = [("h1", 26379), ("h2", 7)]

# Its types are only half there: as in a user's own code, it is not for a checker to find.
BLOCKING: Any = redis
ASYNC: Any = redis.asyncio


@pytest.mark.parametrize("client", [None, 5, "redis://host", object()])
def test_what_is_no_client_is_refused(client: object) -> None:
    with pytest.raises(ConfigError, match="single server"):
        engine_from_client(client)


def test_a_client_becomes_an_engine_without_showing_its_password() -> None:
    engine = engine_from_client(BLOCKING.Redis(host="h", port=7, db=2, password=SECRET))
    assert engine.url == "redis://:***@h:7/2"
    assert SECRET not in repr(read_client(BLOCKING.Redis(password=SECRET)))


@pytest.mark.parametrize("module", [BLOCKING, ASYNC], ids=["blocking", "asynchronous"])
def test_a_sentinels_client_says_all_that_its_url_would(module: Any) -> None:
    manager = module.sentinel.Sentinel(
        HERE, sentinel_kwargs={"password": SECRET, "username": "asker"}, ssl=True
    )
    own = read_client(manager.master_for("main", username="me", password=SECRET, db=2))
    assert own.shown == "rediss+sentinel://me:***@h1:26379,h2:7/main/2"
    assert own.target.tls is not None
    assert own.target.password == SECRET
    assert [each.tls for each in own.sentinels] == [None, None]
    assert own.sentinels[1].username == "asker"
    assert own.sentinels[1].db == 0
    assert SECRET not in f"{own}"


def test_a_clusters_client_says_all_that_its_url_would() -> None:
    started = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in HERE]
    client = ASYNC.RedisCluster(startup_nodes=started, username="me", password=SECRET, ssl=True)
    own = read_client(client)
    assert own.shown == "rediss+cluster://me:***@h1:26379,h2:7"
    assert own.target.tls is not None
    assert own.target.tls.check_hostname is True
    assert own.target.db == 0
    assert SECRET not in f"{own}"


def test_every_option_for_certificates_is_taken_over() -> None:
    given = {
        "ssl_check_hostname": False,
        "ssl_cert_reqs": "none",
        "ssl_min_version": ssl.TLSVersion.TLSv1_3,
        "ssl_include_verify_flags": [ssl.VerifyFlags.VERIFY_X509_STRICT],
        "ssl_exclude_verify_flags": [ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST],
        "ssl_ciphers": "ECDHE+AESGCM",
    }
    pool = BLOCKING.ConnectionPool(connection_class=redis.SSLConnection, **given)
    tls = read_client(pool).target.tls
    assert tls is not None
    context = tls.context()
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert context.verify_flags & ssl.VerifyFlags.VERIFY_X509_STRICT
    assert not context.verify_flags & ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST
    plain = read_client(BLOCKING.Redis(ssl=True)).target.tls
    assert plain is not None
    assert (plain.context().check_hostname, plain.context().verify_mode) == (
        True,
        ssl.CERT_REQUIRED,
    )


def test_addresses_are_mapped_as_the_client_maps_them() -> None:
    forced = BLOCKING.sentinel.Sentinel(HERE, force_master_ip="h3").master_for("main")
    assert read_client(forced).reach(("h9", 7)) == ("h3", 7)
    mapped = ASYNC.RedisCluster(host="h1", address_remap=lambda it: (it[0], it[1] + 1))
    assert read_client(mapped).reach(("h9", 7)) == ("h9", 8)
    plain = ASYNC.RedisCluster(host="h1")
    assert read_client(plain).reach(("h9", 7)) == ("h9", 7)


class OwnConnection(redis.sentinel.SentinelManagedConnection):
    pass


class OwnPlain(redis.Connection):
    pass


class OwnAsync(redis.asyncio.Connection):
    pass


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a client of replicas": (
        lambda: BLOCKING.sentinel.Sentinel(HERE).slave_for("main"),
        "master_for",
    ),
    "an asynchronous one of replicas": (
        lambda: ASYNC.sentinel.Sentinel(HERE).slave_for("main"),
        "master_for",
    ),
    "the sentinels themselves": (lambda: BLOCKING.sentinel.Sentinel(HERE), "master_for"),
    "no sentinel": (lambda: ASYNC.sentinel.Sentinel([]).master_for("main"), "names no sentinel"),
    "a sentinel twice": (
        lambda: ASYNC.sentinel.Sentinel(HERE[:1] * 2).master_for("main"),
        "one of them twice",
    ),
    "connections that find the master": (
        lambda: BLOCKING.sentinel.Sentinel(HERE).master_for("main", connection_class=OwnConnection),
        "OwnConnection .* credential_provider",
    ),
    "connections of another make": (
        lambda: BLOCKING.ConnectionPool(connection_class=object),
        "connections of class object",
    ),
    "a connection class": (
        lambda: BLOCKING.ConnectionPool(connection_class=OwnPlain),
        "connections of class OwnPlain .* credential_provider",
    ),
    "an asynchronous connection class": (
        lambda: ASYNC.ConnectionPool(connection_class=OwnAsync),
        "connections of class OwnAsync .* credential_provider",
    ),
    "checks of the certificate that we have not": (
        lambda: BLOCKING.Redis(ssl=True, ssl_validate_ocsp=True),
        "ssl_validate_ocsp is not supported",
    ),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_what_could_not_be_done_as_the_client_does_it_is_refused(
    make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        engine_from_client(make())
    assert caught.value.name == "store"


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"key": "lock"}, "key"),
        ({"restart_wait": "soon"}, "restart_wait"),
        ({"wait_replicas": -1}, "wait_replicas"),
        ({"wait_replicas": "1:soon"}, "wait_replicas"),
    ],
)
def test_a_clients_wrong_options_are_refused(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_from_client(BLOCKING.Redis(), **wrong)
    assert caught.value.name == name

"""URLs of Redis servers: what they say, what is refused, and that passwords never show."""

from __future__ import annotations

import subprocess
import sys

import pytest

from incumbent.errors import ConfigError
from incumbent.net.tls import Tls
from incumbent.stores.redis import open_store
from incumbent.stores.redis.options import parse_redis_url

SECRET = "pa55-never-shown"


def test_a_bare_url_is_the_local_server() -> None:
    target = parse_redis_url("redis://").target
    assert (target.path, target.tls, target.host, target.port, target.db) == (
        *("", None),
        "localhost",
        6379,
        0,
    )


def test_everything_a_url_can_say_is_read() -> None:
    options = parse_redis_url(
        "rediss://me:s%40me@cache.example:7000/3?ca=/ca&restart_wait=2m"
        "&allow_eviction=yes&key=lock:{name}"
    )
    target = options.target
    assert (target.host, target.port, target.db) == ("cache.example", 7000, 3)
    assert (target.username, target.password) == ("me", "s@me")
    assert target.tls == Tls(ca_certs="/ca")
    assert (options.restart_wait, options.allow_eviction) == (120.0, True)
    assert options.key == "lock:{name}"


def test_a_socket_is_named_by_its_path() -> None:
    target = parse_redis_url("redis+unix://:pw@/run/redis.sock?db=2").target
    assert (target.path, target.db, target.password) == ("/run/redis.sock", 2, "pw")


@pytest.mark.parametrize("scheme", ["valkey", "valkeys"])
def test_valkey_is_spoken_to_like_redis(scheme: str) -> None:
    assert parse_redis_url(f"{scheme}://host").shown == f"{scheme}://host:6379/0"


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert parse_redis_url("redis://[::1]:7/0").shown == "redis://[::1]:7/0"


def test_the_password_can_come_from_elsewhere_and_wins() -> None:
    assert parse_redis_url("redis://me:old@host", "new").target.password == "new"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host?timeout=5", "timeout is not an option.*known: key, restart_wait"),
        ("redis://host?restart_wiat=5", "restart_wiat is not an option"),
        ("redis://host?key=a&key=b", "key is given twice"),
        ("redis://host?db=2", "the path names the database"),
        ("redis+unix:///s?db=one", "not a number of a database"),
        ("redis://host?wait_timeout=1s", "wait_replicas=1:100ms"),
        ("rediss://host?ssl_ca_certs=/ca", "is called ca now"),
        ("rediss://host?ssl_certfile=/c", "is called cert now"),
        ("rediss://host?ssl_keyfile=/k", "is called cert_key now"),
        ("redis://host/one", "not a number of a database"),
        ("redis://host?restart_wait=-1", "restart_wait"),
        ("redis://host?allow_eviction=perhaps", "yes or no"),
        ("redis://host?key=lock", r"\{name\} once"),
        ("redis://host?key={name}{name}", "without other braces"),
        ("redis://host?key={{name}}", "without other braces"),
        ("redis://h1,h2,h3", "names one server"),
        ("redis://host:port", "malformed"),
        ("redis:host", "malformed"),
        ("redis://host#fragment", "malformed"),
        ("redis+unix://", "path/to/the.sock"),
        ("redis+unix://host/path", "path/to/the.sock"),
        ("rediss://host?ssl_cert_reqs=none", "would accept any server's certificate"),
        ("rediss://host?ssl_cert_reqs=optional", "would accept any"),
        ("rediss://host?check_hostname=false", "would accept any"),
        ("rediss://host?ssl_check_hostname=no", "would accept any"),
        ("redis://host?ca=/ca", "need the scheme rediss://"),
        ("redis://host?ssl_cert_reqs=none", "would accept any"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_the_reason(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_store(url)


def test_insisting_on_certificates_is_no_mistake() -> None:
    options = parse_redis_url("rediss://host?ssl_cert_reqs=required&check_hostname=true")
    assert options.target.tls == Tls()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@host:x1",
        f"redis://:a/{SECRET}@host",
        f"redis://:a?{SECRET}@host",
        f"redis://:a#{SECRET}@host",
        f"redis://:[{SECRET}@host",
        f"redis://:{SECRET}@host?no_such=1",
        f"redis://:{SECRET}@h1,h2",
        f"redis+unix://:{SECRET}@",
    ],
)
def test_a_password_shows_in_no_complaint(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_password_shows_in_no_url_and_no_repr() -> None:
    engine = open_store(f"redis://me:{SECRET}@host:7/1")
    assert engine.url == "redis://me:***@host:7/1"
    seen = (engine, engine._site, engine._site.target, parse_redis_url(f"redis://:{SECRET}@h"))
    assert SECRET not in repr(seen)


def test_opening_connects_to_nothing() -> None:
    assert open_store("redis://192.0.2.1").store() is not None


def test_a_missing_driver_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hiredis'] = None\n"
        "from incumbent.stores.redis import open_store\n"
        "try: open_store('redis://host')\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'incumbent[redis]'" in done.stdout


def test_reading_a_url_imports_no_driver() -> None:
    code = (
        "import sys\n"
        "from incumbent.stores.redis.options import parse_redis_url\n"
        "parse_redis_url('redis://host')\n"
        "print(sorted({'redis', 'hiredis', 'asyncio'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "redis" not in done.stdout


def test_a_password_in_the_words_of_a_driver_is_masked() -> None:
    from incumbent.stores.redis.site import connect_error

    site = open_store(f"redis://:{SECRET}@host")._site
    assert SECRET not in str(connect_error(OSError(f"cannot send AUTH {SECRET}"), site))

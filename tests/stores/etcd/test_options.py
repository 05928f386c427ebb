"""The URL of an etcd cluster: what is read from it, and what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from incumbent.errors import ConfigError
from incumbent.stores.etcd import open_etcd
from incumbent.stores.etcd.site import parse_etcd_url
from incumbent.stores.url import Endpoint, with_password

SECRET = "s3cr3t"


def test_a_bare_host_has_the_usual_port_and_prefix() -> None:
    options = parse_etcd_url("etcd://e1")
    assert options.endpoints == (Endpoint("e1", 2379),)
    assert (options.prefix, options.tls, options.restart_wait) == ("/incumbent", False, None)


def test_no_host_is_this_host() -> None:
    assert parse_etcd_url("etcd:///prefix").endpoints == (Endpoint("localhost", 2379),)


def test_several_hosts_keep_their_order_and_ports() -> None:
    options = parse_etcd_url("etcd://e1,e2:12379,[::1]:5/my/prefix")
    assert [str(it) for it in options.endpoints] == ["e1:2379", "e2:12379", "[::1]:5"]
    assert options.prefix == "/my/prefix"


def test_a_password_is_read_and_never_shown() -> None:
    options = parse_etcd_url(f"etcd://me:{SECRET}%2F@e1,e2")
    assert (options.username, options.password) == ("me", f"{SECRET}/")
    assert options.shown == "etcd://me:***@e1:2379,e2:2379/incumbent"
    assert SECRET not in repr(options)
    assert SECRET not in repr(open_etcd(f"etcd://me:{SECRET}@e1"))


def test_the_password_may_come_from_a_file() -> None:
    options = parse_etcd_url(with_password("etcd://me@e1,e2/p", "a/b@c"))
    assert (options.username, options.password) == ("me", "a/b@c")


@pytest.mark.parametrize("host", ["h", "h:6379", "h:6379/0"])
def test_a_password_stands_before_the_host_whatever_the_options_say(host: str) -> None:
    url = f"redis://{host}?client_name=a@b"
    assert with_password(url, "secret") == f"redis://:secret@{host}?client_name=a@b"


def test_restart_wait_is_a_duration() -> None:
    assert parse_etcd_url("etcd://e1?restart_wait=2s").restart_wait == 2.0


@pytest.mark.parametrize(
    "url",
    [
        "etcd:e1",
        "etcd://e1:0",
        "etcd://e1:99999",
        "etcd://e1,,e2",
        "etcd://e1,e1:2379",
        f"etcd://:{SECRET}@e1",
        f"etcd://me:{SECRET}/x@e1",
        f"etcd://me:{SECRET}?x@e1",
        f"etcd://me:{SECRET}#@e1",
        "etcd://e1/a//b",
        "etcd://e1/a b",
        "etcd://e1?ca=/x.pem",
        "etcds://e1?cert=/x.pem",
        "etcd://e1?verify=no",
        "etcd://e1?restart_wait=soon",
        "etcd://e1?restart_wait=1&restart_wait=2",
    ],
)
def test_what_cannot_work_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_etcd_url(url)
    assert SECRET not in str(caught.value)


def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    with pytest.raises(ConfigError, match="ca="):
        open_etcd(f"etcds://e1?ca={nothing}")
    with pytest.raises(ConfigError, match="cert="):
        open_etcd(f"etcds://e1?cert={nothing}&key={nothing}")

"""The URL of an etcd cluster and its options, checked before anything is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from incumbent.errors import ConfigError
from incumbent.stores.url import (
    Endpoint,
    parse_hosts,
    parse_options,
    parse_restart_wait,
    shown_login,
    wrong_option,
)

_FILES: Final = ("ca", "cert", "key")
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._:@-]+)+", re.ASCII)
_PORT: Final = 2379


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """Where the cluster is, and how it is used. `restart_wait` is seconds; None means one ttl."""

    endpoints: tuple[Endpoint, ...]
    prefix: str = "/incumbent"
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    restart_wait: float | None = None

    @property
    def shown(self) -> str:
        """The URL for people: no password, no options."""
        login = shown_login(self.username, self.password)
        hosts = ",".join(str(endpoint) for endpoint in self.endpoints)
        return f"{'etcds' if self.tls else 'etcd'}://{login}{hosts}{self.prefix}"


def parse_etcd_url(url: str) -> EtcdOptions:
    """Read `url`. Raises ConfigError, whose message never has what could be a password."""
    # Not by urlsplit: newer ones refuse an IPv6 address that is not the first host.
    scheme, mark, rest = url.partition("://")
    place, _, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    login, _, hosts = netloc.rpartition("@")
    user, _, password = login.partition(":")
    endpoints = parse_hosts(hosts or "localhost", _PORT)
    usual = scheme in ("etcd", "etcds") and mark and "#" not in rest
    if not usual or endpoints is None or (password and not user):
        raise ConfigError(
            f"the URL of the store is malformed: write {'etcds' if scheme == 'etcds' else 'etcd'}"
            "://[user:password@]host[:2379][,host...][/prefix] with each host once, and"
            " percent-encode : / ? # [ ] @ , within a user name or password",
            name="store",
        )
    options = parse_options(query, (*_FILES, "restart_wait"))
    if scheme != "etcds" and any(name in options for name in _FILES):
        raise wrong_option("ca, cert, key", "need the scheme etcds://")
    if ("cert" in options) != ("key" in options):
        raise wrong_option("cert", "and key are given together: a client certificate and its key")
    return EtcdOptions(
        endpoints=endpoints,
        prefix=_prefix(path),
        tls=scheme == "etcds",
        username=unquote(user) or None,
        password=unquote(password) or None,
        restart_wait=parse_restart_wait(options.pop("restart_wait", None)),
        **options,
    )


def _prefix(path: str) -> str:
    prefix = f"/{path}".rstrip("/") or "/incumbent"
    if not _PREFIX.fullmatch(prefix):
        # A password that was not encoded may end up in the path.
        raise ConfigError(
            "the prefix of the keys (after the hosts) has other characters than"
            " A-Z a-z 0-9 . _ : @ - and single slashes: write etcd://host:2379/my/prefix",
            name="store",
        )
    return prefix

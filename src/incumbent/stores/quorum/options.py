"""The URL of a quorum: `redis+quorum://[user:password@]h1[:port],h2,h3[/db]?options`. Imports no
driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING, Final

from incumbent.errors import ConfigError
from incumbent.stores.redis.options import RedisOptions, parse_redis_url, require_driver

if TYPE_CHECKING:
    from incumbent.stores.quorum.engine import QuorumEngine

_SCHEMES: Final = {"redis+quorum": "redis", "rediss+quorum": "rediss"}
_LEAST: Final = 3
_MOST: Final = 9
_NOT_HERE: Final = ("wait_replicas", "wait_timeout", "functions")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class QuorumOptions:
    """The nodes in the order of the URL. `members`: their list's fingerprint, for any order."""

    scheme: str
    nodes: tuple[RedisOptions, ...]
    members: str

    @property
    def shown(self) -> str:
        """The URL for messages: without password and options."""
        first = self.nodes[0].shown.partition("://")[2]
        login = first.rpartition("@")[0]
        hosts = ",".join(node.shown.rpartition("@")[2].rpartition("://")[2] for node in self.nodes)
        hosts = re.sub(r"/\d+(?=,|$)", "", hosts)
        return f"{self.scheme}://{login}{'@' if login else ''}{hosts}/{self.nodes[0].target.db}"


def open_quorum(url: str, password: str | None = None) -> QuorumEngine:
    """The engine of a URL; `password` replaces the URL's password. Does not connect.

    Raises ConfigError for a malformed URL, an even number of servers, an unknown option, or missing
    drivers.
    """
    options = parse_quorum_url(url, password)
    require_driver()
    from incumbent.stores.quorum.engine import QuorumEngine
    from incumbent.stores.redis.site import site_of

    sites = [site_of(node) for node in options.nodes]
    return QuorumEngine(sites, options.shown, options.members, options.nodes[0].key)


def parse_quorum_url(url: str, password: str | None = None) -> QuorumOptions:
    """Parse `url`; `password` replaces the URL's password.

    Raises ConfigError for fewer than three or more than nine nodes, an even number of nodes, the
    same node twice, an unsuitable option, or an invalid address.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES or not rest:
        raise ConfigError(
            "the URL of the store is malformed: write redis+quorum://h1,h2,h3", name="store"
        )
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    query, name = _without_members(query)
    tail = f"{slash}{path}{'?' if query else ''}{query}"
    plain = _SCHEMES[scheme]
    nodes = tuple(
        parse_redis_url(f"{plain}://{login}{at}{host}{tail}", password) for host in hosts.split(",")
    )
    _check(nodes, hosts)
    return QuorumOptions(scheme, nodes, _fingerprint(nodes, name))


def _without_members(query: str) -> tuple[str, str | None]:
    """The query for each node, and the name of the quorum (`members=`) if there is one."""
    named, others = list[str](), list[str]()
    for part in filter(None, query.split("&")):
        option, _, value = part.partition("=")
        if option in _NOT_HERE:
            raise ConfigError(
                f"option {option} is not one of a quorum: its servers are independent masters, and"
                " scripts are sent to each",
                name=option,
            )
        if option == "members":
            named.append(value)
        else:
            others.append(part)
    if len(named) > 1:
        raise ConfigError("option members is given twice", name="members")
    if named and not _NAME.fullmatch(named[0]):
        raise ConfigError(
            "option members is the name of the quorum: 1 to 63 characters of A-Z a-z 0-9 . _ -",
            name="members",
        )
    return "&".join(others), named[0] if named else None


def _check(nodes: tuple[RedisOptions, ...], hosts: str) -> None:
    count = len(nodes)
    if "" in hosts.split(","):
        raise ConfigError("a quorum needs a host between its commas", name="store")
    if count < _LEAST or count > _MOST or count % 2 == 0:
        raise ConfigError(
            f"a quorum has an odd number of servers from {_LEAST} to {_MOST}, not {count}: an even"
            " number survives no more failures than with one server less, and a single server is"
            " redis://host",
            name="store",
        )
    if len(set(map(_address, nodes))) < count:
        raise ConfigError("a quorum needs different servers: one is named twice", name="store")


def _address(node: RedisOptions) -> str:
    return f"{node.target.host.lower()}:{node.target.port}"


def _fingerprint(nodes: tuple[RedisOptions, ...], name: str | None) -> str:
    """A text like `3:1f0a...`, the same for every order of the same list, or for the same name."""
    members = ",".join(sorted(map(_address, nodes))) if name is None else f"name {name}"
    mark = blake2s(f"{members}/{nodes[0].target.db}".encode(), digest_size=8).hexdigest()
    return f"{len(nodes)}:{mark}"

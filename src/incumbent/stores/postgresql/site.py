"""One configured database: parameters for libpq, from a URL or from a pool of the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from incumbent.errors import ConfigError
from incumbent.stores.url import parse_restart_wait, shown_login, wrong_option

try:
    import psycopg
    from psycopg import conninfo as _conninfo
    from psycopg import pq as pq  # noqa: PLC0414 - exported to `wire`
except ImportError as error:
    raise ConfigError(
        "this store needs the extra postgresql: pip install 'incumbent[postgresql]'"
        " (psycopg[binary]>=3.2.2)",
        name="store",
    ) from error

DriverError = psycopg.Error
_MALFORMED: Final = (
    "the URL of the store is malformed: write"
    " postgresql://[user[:password]@]host[:port][,host2[:port]]/database[?option=value], and"
    " percent-encode : / ? # [ ] @ within a user name or password"
)
_NEVER: Final = {
    "target_session_attrs": "read-write is always asked for: leases need the primary",
    "replication": "leases need an ordinary connection",
    "client_encoding": "it is always UTF8",
}
_ALWAYS: Final = {
    "target_session_attrs": "read-write",
    "client_encoding": "UTF8",
    "fallback_application_name": "incumbent",
}
_SECRET: Final = ("password", "sslpassword", "scram_client_key", "oauth_client_secret")


class Target(NamedTuple):
    """One host of the list. `hostaddr` is set if the name need not be resolved."""

    host: str
    port: str
    hostaddr: str = ""


@dataclass(slots=True)
class PostgresSite:
    """One configured database; of its `targets` the one that served last comes first.

    `served`: the database has served this process before; `direct`: no pooler is in between (None:
    not known yet).
    """

    parameters: Mapping[str, str] = field(repr=False)
    targets: tuple[Target, ...]
    where: str
    restart_wait: float | None = None
    served: bool = False
    direct: bool | None = None

    def prefer(self, target: Target) -> None:
        """Ask this host first from now on."""
        self.targets = (target, *(other for other in self.targets if other is not target))

    def conninfo(self, target: Target, address: str) -> bytes:
        """The connection string for one host at one address, so that libpq resolves no name."""
        where = {"host": target.host, "port": target.port, "hostaddr": address}
        given = {**self.parameters, **{name: value for name, value in where.items() if value}}
        return _conninfo.make_conninfo("", **given).encode()

    def clean(self, text: str) -> str:
        """`text` without secrets, on one line."""
        for name in _SECRET:
            secret = self.parameters.get(name)
            if secret:
                text = text.replace(secret, "***")
        return " ".join(text.split())


def site_of_url(url: str, password: str | None = None) -> PostgresSite:
    """The site of a URL; `password` replaces the URL's password.

    Raises ConfigError; its message never has any part of the URL that could be a password.
    """
    conninfo, restart_wait = _read_url(url)
    try:
        parameters = _conninfo.conninfo_to_dict(conninfo)
    except DriverError as error:
        raise ConfigError(_not_understood(str(error)), name="store") from None
    if password:
        parameters["password"] = password
    return _site_of(parameters, restart_wait)


def _read_url(url: str) -> tuple[str, float | None]:
    """The URL for libpq, and the option `restart_wait` in seconds (None: one ttl)."""
    scheme, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    authority, _, database = address.partition("/")
    login = authority.rpartition("@")[0]
    # A "/", "@" or "#" too many comes from a password that was not percent-encoded.
    if scheme not in ("postgresql", "postgres") or "#" in rest:
        raise ConfigError(_MALFORMED, name="store")
    if "/" in database or "@" in database + login:
        raise ConfigError(_MALFORMED, name="store")
    options = _options_of(query)
    restart_wait = parse_restart_wait(options.pop("restart_wait", None))
    given = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{address}{given}", restart_wait


def _options_of(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(_MALFORMED, name="store") from None
    options: dict[str, str] = {}
    for name, value in pairs:
        if name == "target_session_attrs" and value == "read-write":
            continue
        if name in _NEVER:
            raise ConfigError(f"option {name}: {_NEVER[name]}", name=name)
        if name in options:
            shown = name if re.fullmatch(r"[a-z_]{1,30}", name) else "(not shown)"
            raise wrong_option(shown, "is given twice")
        options[name] = value
    return options


def _not_understood(message: str) -> str:
    # libpq quotes the text that it could not read, which may be a piece of a password.
    start = "invalid URI query parameter: "
    if not message.startswith(start):
        return _MALFORMED
    name = message.removeprefix(start).strip().strip('"')[:40]
    return f"option {name} is neither libpq's nor ours (restart_wait)"


def _site_of(parameters: Mapping[str, Any], restart_wait: float | None) -> PostgresSite:
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    where = _shown(given)
    given.pop("connect_timeout", None)  # the caller's deadline counts instead
    defaults = {option.keyword: option.val or b"" for option in pq.Conninfo.get_defaults()}
    hosts, ports, addresses = (
        given.pop(name, defaults.get(name.encode(), b"").decode()).split(",")
        for name in ("host", "port", "hostaddr")
    )
    lists = hosts, ports, addresses
    numbers = (int(port) if port.isascii() and port.isdigit() else 0 for port in ports if port)
    if not all(0 < number < 65536 for number in numbers):
        raise ConfigError("a port is not a number from 1 to 65535", name="store")
    count = max(len(hosts), len(addresses))
    if any(len(each) not in (1, count) for each in lists):
        raise ConfigError("the lists of hosts and ports differ in length", name="store")
    # A single value counts for all hosts.
    spread = (each * (count // len(each)) for each in lists)
    return PostgresSite({**given, **_ALWAYS}, tuple(map(Target, *spread)), where, restart_wait)


def _shown(given: Mapping[str, str]) -> str:
    """The URL for messages, without the password."""
    hosts = [
        f"[{host}]" if ":" in host else quote(host, safe="")
        for host in given.get("host", "").split(",")
    ]
    ports = given.get("port", "").split(",")
    ports *= len(hosts) // len(ports)
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    login, database = shown_login(given.get("user"), given.get("password")), given.get("dbname")
    return f"postgresql://{login}{','.join(places)}{f'/{database}' if database else ''}"


# -- pools of the user's own ----------------------------------------------------------------------

_NOT_LIBPQ: Final = (
    *("autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context"),
    *("target_session_attrs", "client_encoding"),
)
_SQLALCHEMY: Final = {"database": "dbname", "username": "user"}


def site_of_object(given: Any, restart_wait: float | None) -> PostgresSite:
    """The site of a psycopg_pool pool or a SQLAlchemy engine. Raises ConfigError."""
    parameters = _of_pool(given) if hasattr(given, "conninfo") else _of_sqlalchemy(given)
    return _site_of(parameters, restart_wait)


def _of_pool(pool: Any) -> dict[str, Any]:
    conninfo, more = pool.conninfo, pool.kwargs or {}
    if not isinstance(conninfo, str) or not isinstance(more, dict):
        raise ConfigError(
            f"a {type(pool).__name__} whose address is computed: give a URL", name="store"
        )
    known = {name: value for name, value in more.items() if name not in _NOT_LIBPQ}
    return dict(_conninfo.conninfo_to_dict(conninfo, **known))


def _of_sqlalchemy(engine: Any) -> dict[str, Any]:
    url = getattr(engine, "url", None)
    if url is None or getattr(engine.dialect, "name", "") != "postgresql":
        raise ConfigError(
            f"a {type(engine).__name__} object: give a psycopg_pool.ConnectionPool or"
            " AsyncConnectionPool, or an Engine or AsyncEngine of SQLAlchemy for postgresql",
            name="store",
        )
    _, arguments = engine.dialect.create_connect_args(url)
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    known.difference_update(_NOT_LIBPQ)
    named = {_SQLALCHEMY.get(name, name): value for name, value in arguments.items()}
    return {name: value for name, value in named.items() if name in known}

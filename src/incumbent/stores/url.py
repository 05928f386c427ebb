"""The choice of the store, its engine, and the common parts of store URLs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl, quote, unquote

from incumbent.durations import DAY, Duration, parse_duration
from incumbent.errors import ConfigError
from incumbent.interrupts import raise_if_from_signal
from incumbent.stores.base import Engine

# -- hosts, logins, options ------------------------------------------------------------------------

_HOST: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%a-z]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::(?P<port>\d{1,5}))?"
)


class Endpoint(NamedTuple):
    """The address of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_hosts(text: str, port: int) -> tuple[Endpoint, ...] | None:
    """Parse `h1,h2:7000,[::1]:7001`; None if it is malformed or names an endpoint twice."""
    found: list[Endpoint] = []
    for part in text.split(","):
        match = _HOST.fullmatch(part)
        if match is None:
            return None
        endpoint = Endpoint(match["six"] or unquote(match["name"]), int(match["port"] or port))
        if not 0 < endpoint.port < 65_536 or endpoint in found:
            return None
        found.append(endpoint)
    return tuple(found)


def shown_login(user: str | None, secret: str | None) -> str:
    """The login for display, with the "@" behind it and without the password."""
    return f"{user or ''}:***@" if secret else f"{user}@" if user else ""


def parse_options(
    query: str, known: Collection[str], gone: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The options of a URL. Raises ConfigError for an unknown, empty or repeated option.

    `gone`: for each removed option, the predicate that says what to write instead.
    """
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known and gone and name in gone:
            raise wrong_option(name, gone[name])
        if name not in known:
            # The text after a "?" may be the rest of a password that was not encoded.
            shown = name if re.fullmatch(r"[a-z_]{1,30}", name) else "(not shown)"
            raise wrong_option(shown, f"is not an option of this store; known: {', '.join(known)}")
        if name in options:
            raise wrong_option(name, "is given twice")
        if not value:
            raise wrong_option(name, "is empty")
        options[name] = value
    return options


def wrong_option(name: str, why: str) -> ConfigError:
    """The ConfigError for an option; `why` is a predicate."""
    return ConfigError(f"option {name} {why}", name=name)


def parse_restart_wait(wait: Duration | None) -> float | None:
    """The option `restart_wait` in seconds; None if it is not given."""
    return None if wait is None else parse_duration(wait, "restart_wait", most=DAY)


# -- engines ---------------------------------------------------------------------------------------

_BUILT_IN: Final = {
    "memory": "incumbent.stores.memory:open_memory",
    "sqlite": "incumbent.stores.sqlite:open_sqlite",
    **dict.fromkeys(
        (
            *("redis", "rediss", "valkey", "valkeys", "redis+unix"),
            *("redis+sentinel", "rediss+sentinel", "valkey+sentinel", "valkeys+sentinel"),
            *("redis+cluster", "rediss+cluster", "valkey+cluster", "valkeys+cluster"),
        ),
        "incumbent.stores.redis:open_store",
    ),
    **dict.fromkeys(("redis+quorum", "rediss+quorum"), "incumbent.stores.quorum:open_quorum"),
    **dict.fromkeys(("etcd", "etcds"), "incumbent.stores.etcd:open_etcd"),
    **dict.fromkeys(("postgresql", "postgres"), "incumbent.stores.postgresql:open_postgresql"),
    **dict.fromkeys(("mysql", "mariadb"), "incumbent.stores.mysql:open_mysql"),
    "kubernetes": "incumbent.stores.kubernetes:open_kubernetes",
}
_GROUP: Final = "incumbent.stores"
_NEVER_AT_THE_ENDS: Final = " \t\r\n\"'"
_OF_PACKAGE: Final = {
    **dict.fromkeys(("redis", "valkey", "fakeredis"), "incumbent.stores.redis:engine_from_client"),
    **dict.fromkeys(
        ("psycopg_pool", "sqlalchemy"), "incumbent.stores.postgresql:engine_from_object"
    ),
}
"""By package of an object's class or of one of its bases: the function that makes an engine."""


def open_engine(url: str) -> Engine:
    """The engine of `url`; other packages add schemes by the entry point group `incumbent.stores`.

    Raises ConfigError if `url` is not the URL of a known store. Does not connect.
    """
    scheme, colon, rest = url.partition(":")
    if url != url.strip(_NEVER_AT_THE_ENDS):
        # Docker keeps the quotes of an env file; with SQLite the file's name would have them.
        raise ConfigError(
            "store=... begins or ends with a blank or a quote: write the URL without it",
            name="store",
        )
    if not colon:
        raise ConfigError(
            # The text is not shown: it may contain a password although it is no URL.
            "what was given is not the URL of a store: write for example redis://localhost:6379",
            name="store",
        )
    if scheme == "withheld":
        raise ConfigError(
            "the store is withheld from the command that incumbent runs, so that it cannot take"
            " leases by mistake; start it with --share-store if it needs them",
            name="store",
        )
    if scheme in _BUILT_IN:
        return _make(_BUILT_IN[scheme], url)
    from importlib.metadata import entry_points

    for entry in entry_points(group=_GROUP, name=scheme):
        return cast("Engine", entry.load()(url))
    if rest.isdecimal():
        where = f"{scheme}:{rest}"
        raise ConfigError(f"{where} has no scheme: did you mean redis://{where} ?", name="store")
    raise ConfigError(
        f"{scheme!r} is not the scheme of a known store: {', '.join(sorted(_BUILT_IN))}, or one"
        f" that an installed package offers by the entry point group {_GROUP!r}",
        name="store",
    )


def engine_for_object(driver: object) -> Engine:
    """The engine for a user's own client, pool or SQLAlchemy engine, or the given Engine itself."""
    if isinstance(driver, Engine):
        return driver
    for base in type(driver).__mro__:
        target = _OF_PACKAGE.get(base.__module__.partition(".")[0])
        if target:
            return _make(target, driver)
    raise ConfigError(
        f"store={type(driver).__name__} object: give a URL, a Client, a redis-py client or pool, a"
        " psycopg pool or SQLAlchemy engine, or an object that implements"
        " incumbent.stores.base.Engine",
        name="store",
    )


def _make(target: str, given: Any) -> Engine:
    module, _, function = target.partition(":")
    return cast("Engine", getattr(import_module(module), function)(given))


# -- which store: named by the caller, by the environment, or this host's --------------------------

_URL = "INCUMBENT_STORE"
_URL_FILE = "INCUMBENT_STORE_FILE"
_PASSWORD_FILE = "INCUMBENT_STORE_PASSWORD_FILE"  # noqa: S105 - the name of a variable


def store_url(named: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """`named`, or INCUMBENT_STORE, or the content of INCUMBENT_STORE_FILE, or this host's file.

    INCUMBENT_STORE_PASSWORD_FILE adds the password. Raises ConfigError if a file cannot be read, if
    a URL is set but empty, or if no store is named inside a container.
    """
    url = _named(named, "--store") or _named(environ.get(_URL), _URL)
    if not url and (file := environ.get(_URL_FILE)):
        url = read_secret(file, _URL_FILE).strip()
    url = url or _this_host()
    path = environ.get(_PASSWORD_FILE)
    # A withheld store is refused with a message of its own, whatever else is set.
    if not path or url.startswith("withheld:"):
        return url
    return with_password(url, read_secret(path, _PASSWORD_FILE))


def _named(url: str | None, where: str) -> str | None:
    # An empty URL was meant to be filled in, perhaps from an unset variable. If it selected the
    # file of this host instead, each host would lead.
    if url is not None and not url.strip():
        raise ConfigError(
            f"{where} is empty: name a store, or leave it unset to use the file of this host",
            name="store",
        )
    return url


def _this_host() -> str:
    from incumbent.stores.sqlite.host import detect_here

    where = detect_here()
    if where is not None:
        raise ConfigError(
            f"no store was named, and this is {where}: every replica would have a SQLite file of"
            " its own, and each would lead. Set INCUMBENT_STORE=redis://..., or if this is the only"
            ' one, name the store "sqlite:"',
            name="store",
        )
    return "sqlite:"


def read_secret(path: str, variable: str) -> str:
    """The content of the file that `variable` names, without the newline at its end."""
    try:
        with open(path, encoding="utf-8-sig") as file:  # noqa: PTH123 - pathlib costs start-up time
            secret = file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise_if_from_signal(error)
        problem = error.strerror if isinstance(error, OSError) else "not a text"
        raise ConfigError(f"{variable}={path} cannot be read: {problem}", name="store") from None
    if not secret.strip():
        raise ConfigError(f"{variable}={path} is empty", name="store")
    return secret


def with_password(url: str, password: str) -> str:
    """`url` with the password in it. Raises ConfigError if the URL has no place for one."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "sqlite":
        raise ConfigError(f"{_PASSWORD_FILE}: a {scheme.partition(':')[0]} store has no password")
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    user, _, host = authority.rpartition("@")
    if ":" in user:
        raise ConfigError(f"{_PASSWORD_FILE} is set, and the URL has a password too: leave one out")
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{rest[len(authority) :]}"

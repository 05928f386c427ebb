"""The URL of the store that a caller, the environment or this host names."""

from __future__ import annotations

import os
from collections.abc import Mapping

from incumbent.errors import ConfigError

_URL = "INCUMBENT_STORE"
_URL_FILE = "INCUMBENT_STORE_FILE"
_PASSWORD_FILE = "INCUMBENT_STORE_PASSWORD_FILE"  # noqa: S105 - the name of a variable


def store_url(named: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """`named`, or INCUMBENT_STORE, or the content of INCUMBENT_STORE_FILE, or this host's file.

    The password is put in from INCUMBENT_STORE_PASSWORD_FILE. Raises ConfigError for files that
    cannot be read, for what is named and empty, and where nothing was named inside a container.
    """
    url = _named(named, "--store") or _named(environ.get(_URL), _URL) or _from_file(environ)
    url = url or _this_host()
    path = environ.get(_PASSWORD_FILE)
    # A withheld store is refused with its own words, whatever else is set.
    if not path or url.startswith("withheld:"):
        return url
    return with_password(url, read_secret(path, _PASSWORD_FILE))


def _named(url: str | None, where: str) -> str | None:
    # Meant to be filled in, as by a variable that is not set: with a file of its own instead,
    # each host would lead.
    if url is not None and not url.strip():
        raise ConfigError(
            f"{where} is empty: name a store, or leave it unset to use the file of this host",
            name="store",
        )
    return url


def _from_file(environ: Mapping[str, str]) -> str | None:
    path = environ.get(_URL_FILE)
    return read_secret(path, _URL_FILE).strip() if path else None


def _this_host() -> str:
    from incumbent.stores.sqlite.host import detect_here

    where = detect_here()
    if where is not None:
        raise ConfigError(
            f"no store was named, and this is {where}: every replica would have a SQLite file of"
            " its own, and each would lead. Set INCUMBENT_STORE=redis://..., or if this is the only"
            ' one, name store="sqlite:" (--store sqlite:)',
            name="store",
        )
    return "sqlite:"


def read_secret(path: str, variable: str) -> str:
    """The content of the file that `variable` names, without the newline at its end."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start-up time
            secret = file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not a text"
        raise ConfigError(f"{variable}={path} cannot be read: {problem}", name="store") from None
    if not secret.strip():
        raise ConfigError(f"{variable}={path} is empty", name="store")
    return secret


def with_password(url: str, password: str) -> str:
    """`url` with the password in it. Raises ConfigError where there is no place for one."""
    from urllib.parse import quote

    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "sqlite":
        raise ConfigError(f"{_PASSWORD_FILE}: a {scheme.partition(':')[0]} store has no password")
    authority, slash, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    if ":" in user:
        raise ConfigError(f"{_PASSWORD_FILE} is set, and the URL has a password too: leave one out")
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{slash}{path}"

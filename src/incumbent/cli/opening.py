"""The store that the command line, the environment or this host names."""

from __future__ import annotations

import os
from collections.abc import Mapping

from incumbent.cli.parser import Request
from incumbent.errors import ConfigError
from incumbent.links import default_url

__all__ = ["read_secret", "store_url", "with_password"]

_PASSWORD_FILE = "INCUMBENT_STORE_PASSWORD_FILE"  # noqa: S105 - the name of a variable


def store_url(request: Request, environ: Mapping[str, str] = os.environ) -> str:
    """The URL, with the password from its file. Raises ConfigError."""
    url = request.text("store") or default_url()
    path = environ.get(_PASSWORD_FILE)
    # A withheld store is refused with its own words, whatever else is set.
    if not path or url.startswith("withheld:"):
        return url
    return with_password(url, read_secret(path))


def read_secret(path: str) -> str:
    """The content of a file without the newline that editors and `echo` leave."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start-up time
            return file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not a text"
        raise ConfigError(
            f"{_PASSWORD_FILE}={path} cannot be read: {said}", name="store_password_file"
        ) from None


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

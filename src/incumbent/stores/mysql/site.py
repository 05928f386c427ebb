"""The address of a database, its login and TLS, from a URL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from incumbent.errors import ConfigError
from incumbent.net.tls import Tls
from incumbent.stores import url as urls

_OPTIONS: Final = ("restart_wait", "unix_socket", "ssl_mode", "ssl_ca", "ssl_cert", "ssl_key")
_MODES: Final = ("disabled", "required", "verify_ca", "verify_identity")
_NOT_STRICT: Final = 0x20
"""VERIFY_X509_STRICT: the certificates that MySQL makes for itself do not pass it."""
_MALFORMED: Final = (
    "the URL of the store is malformed: write mysql://[user[:password]@]host[:port][,host2]/database"
    "[?option=value], and percent-encode : / ? # [ ] @ within a user name or password"
)


@dataclass(frozen=True, slots=True)
class MysqlSite:
    """One configured database."""

    where: str
    hosts: tuple[urls.Endpoint, ...]
    database: str
    user: str | None = None
    password: str = field(default="", repr=False)
    unix_socket: str = ""
    tls: Tls | None = None
    restart_wait: float | None = None


def site_of_url(url: str, password: str | None = None) -> MysqlSite:
    """The site of a URL; `password` replaces the URL's password.

    Raises ConfigError; its message never has any part of the URL that could be a password.
    """
    scheme, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    authority, _, database = address.partition("/")
    login, _, places = authority.rpartition("@")
    # A "/", "@" or "#" too many comes from a password that was not percent-encoded.
    if not database or "#" in rest or "/" in database or "@" in f"{database}{login}":
        raise ConfigError(_MALFORMED, name="store")
    options = urls.parse_options(query, _OPTIONS)
    hosts = urls.parse_hosts(places or "localhost", 3306)
    if hosts is None or ("unix_socket" in options and places not in ("", "localhost")):
        raise ConfigError(_MALFORMED, name="store")
    user, _, secret = map(unquote, login.partition(":"))
    secret = password or secret
    return MysqlSite(
        f"{scheme}://{urls.shown_login(user, secret)}{places}/{database}",
        *(hosts, unquote(database), user or None, secret, options.get("unix_socket", "")),
        *(_tls_of(options), urls.parse_restart_wait(options.get("restart_wait"))),
    )


def _tls_of(options: dict[str, str]) -> Tls | None:
    ca, cert, key = (options.get(f"ssl_{name}") for name in ("ca", "cert", "key"))
    mode = options.get("ssl_mode", "verify_identity" if ca or cert else "disabled")
    if mode not in _MODES:
        raise urls.wrong_option("ssl_mode", f"is one of {', '.join(_MODES)}")
    if mode == "disabled":
        return None
    return Tls(
        *(ca, None, None, cert, key),
        cert_reqs="none" if mode == "required" else "required",
        check_hostname=mode == "verify_identity",
        exclude_verify_flags=(_NOT_STRICT,),
    )

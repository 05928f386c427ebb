"""Where to listen and who may ask: settings checked before anything is bound."""

from __future__ import annotations

import hmac
import os
import re
import socket
import stat
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from incumbent.errors import ConfigError

__all__ = ["Address", "authorized", "parse_address", "read_secret", "require_guarded"]

_SHAPE: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/@\s]*)):(?P<port>\d{1,5})"
)
_SHORTEST: Final = 16


class Address(NamedTuple):
    """A resolved address; port 0 lets the system choose."""

    family: int
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it."""
        return ip_address(self.host.partition("%")[0]).is_loopback

    @property
    def url(self) -> str:
        """As one would open it."""
        host = f"[{self.host}]" if self.family == socket.AF_INET6 else self.host
        return f"http://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """HOST:PORT, [::1]:PORT or :PORT (then the loopback address). Raises ConfigError."""
    found = _SHAPE.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ConfigError(
            f"--listen {text!r} is no address: use HOST:PORT, as 127.0.0.1:8080, [::1]:8080, or"
            " port 0 for a free one",
            name="listen",
        )
    host = found["six"] or found["host"] or "127.0.0.1"
    try:
        family, _, _, _, where = socket.getaddrinfo(
            host, int(found["port"]), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--listen {text!r}: the host cannot be resolved ({error})", name="listen"
        ) from error
    return Address(family, str(where[0]), int(where[1]))


def require_guarded(address: Address, *, public: bool, token_file: str | None) -> None:
    """Raise ConfigError if others could reach `address` without having been meant to."""
    if address.loopback or (public and token_file is not None):
        return
    lacking = [
        option
        for option, given in (("--listen-public", public), ("--token-file", token_file))
        if not given
    ]
    raise ConfigError(
        f"--listen {address.host} can be reached from other hosts: add {' and '.join(lacking)},"
        " or use 127.0.0.1",
        name="listen",
    )


def read_secret(path: str) -> str:
    """The first line of a token file. Raises ConfigError, which never shows what is in it."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            line = file.readline(4096).rstrip(b"\r\n")
    except OSError as error:
        raise _bad(path, f"cannot be read ({error.strerror})") from None
    if mode & stat.S_IROTH:
        raise _bad(path, "can be read by everybody on this host: chmod o-rwx it")
    if len(line) < _SHORTEST:
        raise _bad(path, f"is too short: its first line needs at least {_SHORTEST} characters")
    if not re.fullmatch(rb"[!-~]+", line):
        raise _bad(path, "has blanks or other than ASCII characters in its first line")
    return line.decode("ascii")


def authorized(header: str | None, secret: str | None) -> bool:
    """Whether an Authorization header proves that its sender knows `secret`; None asks for none."""
    if secret is None:
        return True
    scheme, _, given = (header or "").partition(" ")
    # Bytes, for strings with other than ASCII characters cannot be compared in constant time.
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), secret.encode())
    return same and scheme.lower() == "bearer"


def _bad(path: str, what: str) -> ConfigError:
    return ConfigError(f"--token-file {path} {what}", name="token_file")

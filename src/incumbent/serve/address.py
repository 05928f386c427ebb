"""The settings of the HTTP pages, checked before a socket is opened: address and token."""

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

__all__ = ["Address", "authorized", "parse_address", "read_secret"]

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
        """The URL for a browser."""
        host = f"[{self.host}]" if self.family == socket.AF_INET6 else self.host
        return f"http://{host}:{self.port}"


def parse_address(text: str, *, guarded: bool) -> Address:
    """HOST:PORT, [::1]:PORT or :PORT (the loopback address).

    Raises ConfigError, also if other hosts can reach it and it is not `guarded` by a token.
    """
    match = _SHAPE.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise _bad_listen(
            f"{text!r} is no address: use HOST:PORT, as 127.0.0.1:8080, [::1]:8080, or"
            " port 0 for a free one"
        )
    host = match["six"] or match["host"] or "127.0.0.1"
    try:
        family, _, _, _, where = socket.getaddrinfo(
            host, int(match["port"]), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise _bad_listen(f"{text!r}: the host cannot be resolved ({error})") from error
    address = Address(family, str(where[0]), int(where[1]))
    if not guarded and not address.loopback:
        raise _bad_listen(
            f"{text} can be reached from other hosts: add --token-file, or use 127.0.0.1"
        )
    return address


def read_secret(path: str) -> str:
    """The first line of a token file. Raises ConfigError, whose text never contains the token."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            line = file.readline(4096).rstrip(b"\r\n")
    except OSError as error:
        raise _bad_token(path, f"cannot be read ({error.strerror})") from None
    if mode & stat.S_IROTH:
        raise _bad_token(path, "can be read by everybody on this host: chmod o-rwx it")
    if len(line) < _SHORTEST:
        raise _bad_token(
            path, f"is too short: its first line needs at least {_SHORTEST} characters"
        )
    if not re.fullmatch(rb"[!-~]+", line):
        raise _bad_token(path, "has blanks or other than ASCII characters in its first line")
    return line.decode("ascii")


def authorized(header: str | None, secret: str | None) -> bool:
    """Whether the Authorization header contains `secret`; always, if `secret` is None."""
    if secret is None:
        return True
    scheme, _, token = (header or "").partition(" ")
    # compare_digest takes only bytes if there may be other than ASCII characters.
    same = hmac.compare_digest(token.strip().encode("utf-8", "replace"), secret.encode())
    return same and scheme.lower() == "bearer"


def _bad_listen(problem: str) -> ConfigError:
    return ConfigError(f"--listen {problem}", name="listen")


def _bad_token(path: str, problem: str) -> ConfigError:
    return ConfigError(f"--token-file {path} {problem}", name="token_file")

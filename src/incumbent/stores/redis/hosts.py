"""Lists of hosts, as the URLs of stores with several servers name them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import unquote

__all__ = ["Address", "Reach", "parse_address", "parse_hosts", "say_address", "the_same"]

Address: TypeAlias = "tuple[str, int]"
Reach: TypeAlias = Callable[[Address], Address]
"""Where a server is reached that announces an address which this side of a network cannot reach."""

_HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%a-z]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::(?P<port>\d{1,5}))?"
)


def parse_hosts(text: str, port: int) -> tuple[Address, ...] | None:
    """`h1,h2:7000,[::1]:7001`; None if that is malformed, or if a host comes twice."""
    found: list[Address] = []
    for part in text.split(","):
        match = _HOST.fullmatch(part)
        if match is None:
            return None
        number = int(match["port"] or port)
        address = (match["six"] or unquote(match["name"]), number)
        if not 0 < number < 65_536 or address in found:
            return None
        found.append(address)
    return tuple(found)


def parse_address(text: str) -> Address:
    """`host:port` as servers say it, where an IPv6 address has no brackets."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def say_address(address: Address) -> str:
    """For people."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def the_same(address: Address) -> Address:
    """Where nearly every server is reached: see Reach."""
    return address

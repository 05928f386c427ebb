"""Addresses of servers, as they and people name them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Address: TypeAlias = "tuple[str, int]"
Reach: TypeAlias = Callable[[Address], Address]
"""Where a server is reached that announces an address which this side of a network cannot reach."""


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

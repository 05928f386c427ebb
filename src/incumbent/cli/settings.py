"""From the options of a request to the settings of its lock, and to numbers."""

from __future__ import annotations

from incumbent.cli.parser import Request
from incumbent.errors import ConfigError
from incumbent.options import LockSettings
from incumbent.policy import TTL_DEFAULT, Policy, make_policy
from incumbent.stores.names import check_name

_SLOT_KEPT = "30d"

__all__ = ["lock_settings", "lock_times", "number"]


def lock_settings(request: Request) -> LockSettings:
    """The settings that were given; the lock checks them."""
    settings: LockSettings = {
        "grace": request.text("grace"),
        "holder": request.text("holder"),
        "once_per": request.text("once_per"),
        "at_most_for": request.text("at_most_for"),
        "at_least_for": request.text("at_least_for"),
    }
    if request.on("fair"):
        settings["fair"] = True
    if (ttl := request.text("ttl")) is not None:
        settings["ttl"] = ttl
    if (slot := request.text("slot")) is not None:
        settings["slot"] = check_name(slot)
        # A caller that names its starts wants each of them once, for as long as stores remember.
        settings["once_per"] = settings["once_per"] or _SLOT_KEPT
    return settings


def lock_times(request: Request) -> Policy:
    """The times that the settings amount to; raises ConfigError, with the numbers."""
    ttl = request.text("ttl")
    return make_policy(TTL_DEFAULT if ttl is None else ttl, grace=request.text("grace"))


def number(request: Request, dest: str, least: int, most: int) -> int | None:
    """The number that was given for an option, or None. Raises ConfigError."""
    text = request.text(dest)
    if text is None:
        return None
    plain = text.isascii() and text.isdecimal() and len(text) < 10
    if not plain or not least <= int(text) <= most:
        raise ConfigError(f"{dest}={text[:40]!r}: a number from {least} to {most}", name=dest)
    return int(text)

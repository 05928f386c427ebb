"""What CMD finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["WITHHELD", "child_environment"]

WITHHELD: Final = "withheld:"
"""A store URL that every incumbent refuses with an explanation."""

_CREDENTIALS: Final = ("INCUMBENT_STORE_FILE", "INCUMBENT_STORE_PASSWORD_FILE")
_LEASE: Final = "INCUMBENT_LEASE_"
_OF_THE_SERVICE: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""CMD must not tell the service manager that its supervisor is well."""


def child_environment(
    environ: Mapping[str, str],
    *,
    name: str,
    holder: str,
    term: int,
    slot: str | None,
    share_store: str | None,
    socket: str | None = None,
) -> dict[str, str]:
    """`environ` with the lease in it; the store (`share_store`, a URL) only if it is shared.

    `socket`: where CMD asks whether it still holds the lease.
    """
    kept = {
        key: value
        for key, value in environ.items()
        # A lease of our own parent is not CMD's.
        if not key.startswith(_LEASE) and key not in (*_CREDENTIALS, *_OF_THE_SERVICE)
    }
    kept["INCUMBENT_STORE"] = WITHHELD if share_store is None else share_store
    lease = {"NAME": name, "HOLDER": holder, "TERM": str(term), "SLOT": slot, "SOCKET": socket}
    kept.update({_LEASE + key: value for key, value in lease.items() if value is not None})
    return kept

"""A process that takes leases as it is told: run with the code of another commit.

Needs nothing but `incumbent`. A line of JSON on its input, {"do", "url", ...}, a line of JSON back.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from incumbent import Client, LockError
from incumbent.clock import now

_leases: dict[str, Any] = {}


def main() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said = _DOES[asked.pop("do")](**asked)
        except LockError as error:
            permanent = getattr(error, "permanent", False)
            said = {"error": type(error).__name__, "text": str(error), "permanent": permanent}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def _take(url: str, name: str, ttl: float, timeout: float) -> dict[str, Any]:
    lease = Client(url).lock(name, ttl=ttl).acquire(timeout=timeout)
    _leases[url] = lease
    return {"token": lease.fencing_token}


def _renew(url: str) -> dict[str, Any]:
    return {"proved": _leases[url].renew()}


def _valid(url: str) -> dict[str, Any]:
    return {"valid": url in _leases and _leases[url].valid}


def _release(url: str) -> dict[str, Any]:
    return {"released": _leases.pop(url).release()}


def _fix(url: str) -> dict[str, Any]:
    """Prepare the store, as `doctor --fix` does."""
    # Where the release before has it.
    engine = import_module("incumbent.stores.registry").open_engine(url)
    engine.fix(now() + 20)
    return {}


_DOES: dict[str, Callable[..., dict[str, Any]]] = {
    "take": _take,
    "renew": _renew,
    "valid": _valid,
    "release": _release,
    "fix": _fix,
}


if __name__ == "__main__":
    main()

"""python -m incumbent.testing.contract [URL] [--ttl TTL] [-- OPTION...]: does the store keep it?

Runs every case of the suite that needs no fault of the store, on both sides (blocking, asyncio).
Cases that need a ttl to end wait for it, so a run takes minutes; with pytest-xdist installed eight
processes share the waiting. The cases use namespaces of their own, `contract-...`, and leave
records behind that end by themselves: give them a database, prefix or namespace that is theirs.

Exit codes: 0 kept, 1 broken, 64 wrong usage, 69 the store cannot be used, 130 interrupted.
"""
# ruff: noqa: T201 - it talks to people

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from incumbent import clock
from incumbent.durations import parse_duration, say_seconds
from incumbent.errors import ConfigError, StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Key
from incumbent.stores.url import open_engine, store_url
from incumbent.supervise.codes import FAULT, OK, UNPROVED, USAGE

_WITHIN = 10.0
_CODES: dict[int, tuple[int, str]] = {
    pytest.ExitCode.OK: (OK, "kept: {} keeps the contract"),
    pytest.ExitCode.TESTS_FAILED: (1, "broken: {} does not keep the contract, see above"),
    pytest.ExitCode.INTERRUPTED: (130, ""),
    pytest.ExitCode.NO_TESTS_COLLECTED: (USAGE, "incumbent: no case has such a name"),
    pytest.ExitCode.USAGE_ERROR: (USAGE, ""),
}


class _Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"incumbent: {message}\n{self.format_usage()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite, and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    ours = words.index("--") if "--" in words else len(words)
    asked = _parser().parse_args(words[:ours])
    try:
        url = store_url(asked.url)
        where = _prove_usable(url, parse_duration(asked.ttl, "ttl"))
    except (ConfigError, StoreError) as error:
        print(f"incumbent: {error}", file=sys.stderr)
        return USAGE if isinstance(error, ConfigError) else UNPROVED
    # By the environment: workers of pytest-xdist and clients in other processes have it, too.
    for name in ("INCUMBENT_STORE_FILE", "INCUMBENT_STORE_PASSWORD_FILE"):
        os.environ.pop(name, None)
    os.environ |= {"INCUMBENT_STORE": url, "INCUMBENT_TTL": asked.ttl}
    code, said = _CODES.get(pytest.main(_options() + words[ours + 1 :]), (FAULT, ""))
    print(said.format(where))
    return code


def _parser() -> argparse.ArgumentParser:
    lines = (__doc__ or "").splitlines()
    usage = lines[0].partition(": ")[0]
    parser = _Words(usage=usage, description=lines[2], epilog=lines[-1])
    parser.add_argument("url", nargs="?", help="the store; else that of INCUMBENT_STORE")
    waits = "a ttl that cases wait for; longer is steadier (default: 2s)"
    parser.add_argument("--ttl", default="2s", help=waits)
    return parser


def _prove_usable(url: str, ttl: float) -> str:
    """How the store calls itself; raises ConfigError, and StoreError if it grants no lease."""
    engine = open_engine(url)
    shortest = engine.capabilities.ttl_min
    if ttl < shortest:
        raise ConfigError(f"ttl must be at least {say_seconds(shortest)} on this store", name="ttl")
    store, key, claim = engine.store(), Key("contract-first", "a"), "first"
    try:
        taken = store.take(key, claim, Ask(ttl, holder="contract"), clock.now() + _WITHIN)
        if not isinstance(taken, Granted):
            raise StoreUnavailable(f"{engine.url} grants no lease: {taken.reason}")
        store.give(key, claim, taken.token, clock.now() + _WITHIN)
    finally:
        store.close()
    return engine.url


def _options() -> list[str]:
    """Nothing of a project that happens to be here counts: no settings, and no cache."""
    here = Path(__file__).parent
    alone = ["-c", os.devnull, "--rootdir", str(here), "-p", "no:cacheprovider"]
    shared = ["-n", "8"] if find_spec("xdist") else []
    look = ["--import-mode=importlib", "-q", "--tb=short"]
    return [*alone, *shared, *look, str(here / "against.py")]


if __name__ == "__main__":
    sys.exit(main())

"""Calls a list of HTTP endpoints and reports each: the job that must run once in a fleet.

    incumbent run nightly --once-per 12h -- python examples/sync.py

calls what endpoints.txt beside this file lists; --file and --url name others.

One endpoint that fails does not stop the others. Exit 0 if all answered well,
1 if some did not, 2 if there is nothing sensible to call.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ENDPOINTS = Path(__file__).with_name("endpoints.txt")


@dataclass(frozen=True)
class Report:
    url: str
    ok: bool
    outcome: str
    milliseconds: float

    def __str__(self) -> str:
        mark = "ok  " if self.ok else "FAIL"
        return f"{mark} {self.url} {self.outcome} {self.milliseconds:.0f} ms"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        urls = [*options.url, *_from_file(options.file or (None if options.url else ENDPOINTS))]
        _check(urls)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    _say_term()
    return call_all(urls, options.method, options.timeout)


def call_all(urls: Iterable[str], method: str, timeout: float) -> int:
    failed = 0
    for url in urls:
        report = call(url, method, timeout)
        # Flushed, so that a job stopped half-way has reported what it did.
        print(report, flush=True)
        failed += not report.ok
    return 1 if failed else 0


def call(url: str, method: str, timeout: float) -> Report:
    begin = time.perf_counter()
    ok, outcome = _ask(url, method, timeout)
    return Report(url, ok, outcome, (time.perf_counter() - begin) * 1000)


def _ask(url: str, method: str, timeout: float) -> tuple[bool, str]:
    request = urllib.request.Request(url, method=method, headers=_headers())
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            reply.read()
            return True, str(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return False, str(error.code)
    except (OSError, http.client.HTTPException) as error:
        return False, _reason(error)


def _headers() -> dict[str, str]:
    # An endpoint that remembers the highest term it saw can refuse a late call.
    term = os.environ.get("INCUMBENT_LEASE_TERM")
    return {"X-Lease-Term": term} if term else {}


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason) or type(reason).__name__


def _from_file(path: Path | None) -> list[str]:
    """One URL a line; empty lines and those that start with # are skipped."""
    if path is None:
        return []
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _check(urls: list[str]) -> None:
    if not urls:
        raise ValueError("nothing to call: give --url or --file")
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"not an http or https URL: {url}")


def _say_term() -> None:
    if term := os.environ.get("INCUMBENT_LEASE_TERM"):
        name = os.environ.get("INCUMBENT_LEASE_NAME", "")
        print(f"lease {name} term {term}", flush=True)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"between 0 and 3600 seconds, not {text}")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sync", description="Call HTTP endpoints, report each.")
    parser.add_argument("--file", type=Path, help="a file with one URL a line, # for comments")
    parser.add_argument("--url", action="append", default=[], help="a URL; may be repeated")
    parser.add_argument("--method", default="GET", choices=["GET", "HEAD", "POST", "PUT"])
    parser.add_argument("--timeout", type=_seconds, default=10.0, help="seconds for each call")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Five instances of one fleet start the same job: one runs it, four skip.

No server is needed: the store is a SQLite file in a temporary folder. Exits
non-zero unless exactly one instance called the endpoints.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

INSTANCES = 5
# The starts are spread, as those of a real fleet are: some instances meet the
# running job, others come when it is done and find its slot taken.
SPREAD = 2.0
ENDPOINTS = ("/customers", "/invoices", "/stock")
ANSWER_AFTER = 0.3
HELD = 75
GIVE_UP_AFTER = 60
HERE = Path(__file__).resolve().parent

COLOURED = sys.stdout.isatty() and "NO_COLOR" not in os.environ
GREEN, YELLOW, RED, BOLD = 32, 33, 31, 1
# Lines of several instances arrive at once.
one_line_at_a_time = threading.Lock()


def paint(text: str, colour: int) -> str:
    return f"\033[{colour}m{text}\033[0m" if COLOURED else text


def say(text: str) -> None:
    with one_line_at_a_time:
        print(text, flush=True)


@dataclass
class Instance:
    """One `incumbent run`, and what became of it."""

    name: str
    command: list[str]
    lines: list[str] = field(default_factory=list)
    code: int | None = None

    @property
    def ran(self) -> bool:
        return self.code == 0

    @property
    def skipped(self) -> bool:
        """It skipped and said who had the job."""
        return self.code == HELD and any(
            "instance-" in line.replace(self.name, "") for line in self.lines
        )

    def run(self) -> None:
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(),
        )
        self._listen(process)
        self.code = process.wait()
        self._say(*self._verdict())

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 - tells the type checker about PIPE
        with process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip())
                self._say(line.rstrip())

    def _verdict(self) -> tuple[str, int]:
        if self.ran:
            return "ran the job, exit 0", GREEN
        if self.skipped:
            return f"skipped, exit {HELD}", YELLOW
        return f"exit {self.code}", RED

    def _say(self, text: str, colour: int = 0) -> None:
        say(f"  {paint(self.name, BOLD)} | {paint(text, colour) if colour else text}")


def clean_environment() -> dict[str, str]:
    """Without the user's own settings: the demo shows the same on every machine."""
    ours = ("INCUMBENT_", "PYTHON")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) and not name.lower().endswith("_proxy")
    }


@contextmanager
def endpoints() -> Iterator[tuple[int, list[str]]]:
    """A local HTTP server; yields its port and the calls it got."""
    calls: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append(self.path)
            time.sleep(ANSWER_AFTER)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - their name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_port, calls
        server.shutdown()


def command(name: str, store: str, urls: Path) -> list[str]:
    incumbent = Path(sysconfig.get_path("scripts")) / "incumbent"
    job = [sys.executable, str(HERE / "sync.py"), "--file", str(urls)]
    options = ["--once-per", "12h", "--holder", name]
    return [str(incumbent), "--store", store, "run", "nightly", *options, "--", *job]


def run_fleet(folder: Path, port: int) -> list[Instance]:
    urls = folder / "urls.txt"
    urls.write_text("".join(f"http://127.0.0.1:{port}{path}\n" for path in ENDPOINTS))
    names = [f"instance-{number + 1}" for number in range(INSTANCES)]
    fleet = [Instance(n, command(n, f"sqlite:///{folder}/demo.db", urls)) for n in names]
    say(f"Each of {INSTANCES} instances starts the same line within {SPREAD:g} s:\n")
    say(f"  {paint(in_short(fleet[0].command), BOLD)}\n")
    start_all(fleet)
    return fleet


def in_short(words: list[str]) -> str:
    """The command as one would type it, folders left out."""
    shown = [word if "://" in word else Path(word).name for word in words]
    return shlex.join(shown)


def start_all(fleet: list[Instance]) -> None:
    threads = [threading.Thread(target=instance.run, daemon=True) for instance in fleet]
    for thread in threads:
        thread.start()
        time.sleep(SPREAD / (INSTANCES - 1))
    for thread in threads:
        thread.join(GIVE_UP_AFTER)


def judge(fleet: list[Instance], calls: list[str]) -> bool:
    ran = sum(instance.ran for instance in fleet)
    skipped = sum(instance.skipped for instance in fleet)
    once = sorted(calls) == sorted(ENDPOINTS)
    right = once and (ran, skipped) == (1, INSTANCES - 1)
    say(f"\n{ran} ran, {skipped} skipped and said who held it; {len(calls)} calls arrived:")
    for path in ENDPOINTS:
        say(f"  {path} called {calls.count(path)} time(s)")
    say(paint("Exactly one did the job." if right else "NOT exactly one!", GREEN if right else RED))
    return right


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="incumbent-demo-") as folder:
        with endpoints() as (port, calls):
            fleet = run_fleet(Path(folder), port)
        return 0 if judge(fleet, calls) else 1


if __name__ == "__main__":
    sys.exit(main())

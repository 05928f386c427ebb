"""Five instances, four API calls each at its own minute, one crash, two wrong clocks.

Every instance has the same jobs, as every container of a fleet has. A minute lasts five seconds
here, so the clocks that are 40 s off are off by 3.3 s. The store is a SQLite file, or `--store`.
Exits non-zero unless each slot was done exactly once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MINUTE = 5
CALLS = ("/customers", "/invoices", "/stock", "/prices")
OFF = 40 * MINUTE / 60
CLOCKS = {"one": 0.0, "two": 0.0, "three": 0.0, "ahead": OFF, "behind": -OFF}
LASTS = 1.0
RUN_FOR = len(CALLS) * MINUTE + OFF + 2
TTL = 1.5
STATES = ("ok", "failed", "timed_out", "lost")


@dataclass
class Api:
    """A local server that counts the calls it answered, by slot."""

    port: int = 0
    begun: list[tuple[str, str]] = field(default_factory=list)
    done: Counter[tuple[str, str]] = field(default_factory=Counter)


@contextmanager
def serving() -> Iterator[Api]:
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            call = (self.path, self.headers["X-Slot"])
            api.begun.append(call)
            time.sleep(LASTS)
            # Who was killed meanwhile no longer hears the answer.
            with suppress(OSError):
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")
                api.done[call] += 1

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - their name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        api.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield api
        server.shutdown()


def job_file(port: int) -> str:
    """Each call at its own minute of an hour of four."""
    hour = len(CALLS) * MINUTE
    jobs = []
    for number, path in enumerate(CALLS):
        seconds = ",".join(map(str, range(number * MINUTE, 60, hour)))
        command = [sys.executable, str(HERE / "call.py"), f"http://127.0.0.1:{port}{path}"]
        jobs.append(
            f'[[job]]\nname = "{path[1:]}"\nschedule = "{seconds} * * * * *"\n'
            f"command = {json.dumps(command)}\nretries = 1\n"
        )
    return "\n".join(jobs)


@dataclass
class Fleet:
    """The instances, and the events that they write, one line of JSON each."""

    store: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, off: float) -> None:
        command = [sys.executable, str(HERE / "instance.py"), "--store", self.store, "cron"]
        options = [str(self.folder / "jobs.toml"), "--holder", name, "--ttl", str(TTL)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*command, *options, "--grace", "0.3"],
                env={**os.environ, "CLOCK_OFF": str(off)},
                stdout=log,
                start_new_session=True,
            )

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        found = []
        for name in self.processes:
            for line in (self.folder / f"{name}.log").read_text().splitlines():
                with suppress(ValueError):
                    found.append(json.loads(line))
        return [it for it in found if it["event"] in kinds]

    def kill(self, name: str) -> None:
        """As the end of its container does: with all that it started."""
        victims = [self.processes[name].pid, *descendants(self.processes[name].pid)]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes[name].wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()


def descendants(pid: int) -> Sequence[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # proc(5): the name in parentheses may hold anything, the parent comes second after it.
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
    found = [pid]
    for each in found:
        found += [own for own, its in parents.items() if its == each]
    return found[1:]


def kill_one_in_mid_run(fleet: Fleet) -> str:
    """The first that is seen running something after the start."""
    until = time.monotonic() + 3 * MINUTE
    while time.monotonic() < until:
        over = {(it["job"], it["slot"]) for it in fleet.events(*STATES)}
        on = [it for it in fleet.events("started") if (it["job"], it["slot"]) not in over]
        if on:
            name = str(on[0]["instance"])
            fleet.kill(name)
            return f"{name} (it ran {on[0]['job']} {on[0]['slot'][11:19]})"
        time.sleep(0.05)
    return "nobody: nothing ran"


def show(fleet: Fleet, api: Api) -> bool:
    """The table, and whether each slot was done once."""
    ended = {(it["job"], it["slot"]): it for it in fleet.events(*STATES)}
    names = {(it["job"], it["slot"]): str(it["instance"]) for it in fleet.events("started")}
    slots = sorted({(job, slot.partition("#")[0]) for job, slot in (*ended, *names)})
    print(f"\n{'SLOT (UTC)':<12}{'JOB':<12}{'WHAT BECAME OF IT':<44}CALLS ANSWERED")
    well = True
    for job, slot in sorted(slots, key=lambda it: it[1]):
        story = []
        for name in (slot, f"{slot}#2"):
            if (job, name) in names or (job, name) in ended:
                state = ended.get((job, name), {}).get("event", "runs")
                story.append(f"{state} on {names.get((job, name), '?')}")
        answered = sum(
            times
            for (path, name), times in api.done.items()
            if path == f"/{job}" and name.partition("#")[0] == slot
        )
        well = well and answered == 1
        print(f"{slot[11:19]:<12}{job:<12}{', then '.join(story):<44}{answered}")
    return well and len(slots) >= len(CALLS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="instead of a SQLite file in a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="incumbent-fleet-") as name, serving() as api:
        folder = Path(name)
        fleet = Fleet(given.store or f"sqlite:///{folder}/leases.db", folder)
        (folder / "jobs.toml").write_text(job_file(api.port))
        began = time.monotonic()
        print(f"five instances for {RUN_FOR:.0f} s; a minute is {MINUTE} s")
        for holder, off in CLOCKS.items():
            fleet.start(holder, off)
            print(f"  {holder:<8} clock {off * 60 / MINUTE:+.0f} s")
        try:
            print(f"killed in mid-run: {kill_one_in_mid_run(fleet)}")
            time.sleep(max(0.0, began + RUN_FOR - time.monotonic()))
        finally:
            fleet.stop()
        well = show(fleet, api)
    print("\neach slot was done once" if well else "\nA SLOT WAS DONE TWICE, OR NEVER")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

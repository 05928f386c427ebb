"""Five hundred who look at the page of a leader, and one who never reads, cost it no renewal."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.locks.clients import Client
from incumbent.page.site import PageSite
from incumbent.runtime.link import link_for
from incumbent.serve.http import PageServer
from incumbent.serve.pages import TEXT, Page
from tests import tiers
from tests.support.pace import BUSY, took

pytestmark = [pytest.mark.left(tiers.LONG), pytest.mark.crowd(tiers.MANY)]

VIEWERS = """
import asyncio, socket, sys
HEAD = b"GET /events?window=1h HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n"

async def follow(port, seen):
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD)
            while line := await reader.readline():
                if line.startswith(b"data:"):
                    seen.add(asyncio.current_task())
        except (OSError, ValueError):
            pass
        await asyncio.sleep(0.05)

async def main(port, count):
    deaf, seen = socket.create_connection(("127.0.0.1", port)), set()
    deaf.sendall(HEAD)
    tasks = [asyncio.create_task(follow(port, seen)) for _ in range(count)]
    while len(seen) < count:
        await asyncio.sleep(0.05)
    print("all", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


def test_five_hundred_viewers_and_a_deaf_one_cost_the_leader_no_renewal(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 'leases.db'}"
    healthz = {"/healthz": lambda _: Page(200, TEXT, "ok\n")}
    with (
        Client(store) as client,
        client.lock("telnet", ttl=6).acquire() as lease,
        closing(PageSite(store, "default")) as site,
        closing(PageServer({**healthz, **site.routes()}, "127.0.0.1:0", None)) as server,
    ):
        port = server.url.rpartition(":")[2]
        command = [sys.executable, "-c", VIEWERS, port, "500"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewers:
            assert viewers.stdout is not None
            assert viewers.stdout.readline() == "all\n"
            least, began = lease.remaining, clock.now()
            while clock.now() - began < 8:
                least = min(least, lease.remaining)
                asked = clock.now()
                with urllib.request.urlopen(f"{server.url}/healthz", timeout=30) as answer:
                    assert answer.status == 200
                assert took(asked) < BUSY
                time.sleep(0.01)
            viewers.kill()
        lease.check()
        assert least > 1
        assert link_for(client).keeper.stats.failures == 0

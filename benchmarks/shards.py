"""Shards at rest on Redis: a thousand over four members, each in a process of its own.

What CPU they take together, on each side.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

from tests.support.servers import RedisServer

from benchmarks.harness import Figure
from incumbent import AsyncShard, AsyncShards, Shard, Shards

__all__ = ["shard_rows"]

_MEMBERS, _SHARDS = 4, 1_000
_SETTLED = 4.0
"""Seconds at rest before the CPU is watched: the first renewals are over."""


def shard_rows(seconds: float) -> list[Figure]:
    """Both sides, each watched for so many seconds."""
    return [row for side in ("blocking", "asyncio") for row in _rows(side, seconds)]


def _rows(side: str, seconds: float) -> list[Figure]:
    with RedisServer() as server:
        members = [_start(f"{server.url}?restart_wait=0", side) for _ in range(_MEMBERS)]
        while sum(_ask(member, "held") for member in members) < _SHARDS:
            time.sleep(0.1)
        time.sleep(_SETTLED)
        before = [_ask(member, "cpu") for member in members]
        theirs, began = _server_cpu(server), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        used = sum(_ask(member, "cpu") for member in members) - sum(before)
        served = _server_cpu(server) - theirs
        held = sum(_ask(member, "held") for member in members)
        for member in members:
            member.communicate("end\n", timeout=60)
    what = f"{_SHARDS:,} shards over {_MEMBERS} members at rest, {side}"
    return [
        Figure(f"{what}: of a core, all members together", 100 * used / took, "%", 1),
        Figure("... of the server's core", 100 * served / took, "%"),
        Figure("... shards lost", _SHARDS - held, "", 0),
    ]


def _start(url: str, side: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "benchmarks.shards", url, side]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(member: subprocess.Popen[str], what: str) -> float:
    assert member.stdin is not None
    assert member.stdout is not None
    member.stdin.write(f"{what}\n")
    member.stdin.flush()
    return float(json.loads(member.stdout.readline()))


def _server_cpu(server: RedisServer) -> float:
    said = dict(
        line.split(":", 1) for line in server.cli("INFO", "cpu").splitlines() if ":" in line
    )
    return float(said["used_cpu_user"]) + float(said["used_cpu_sys"])


# -- in the process of one member


def _answer(shards: Shards | AsyncShards) -> None:
    """Until the end is asked for; meanwhile nothing but the shards runs."""
    for line in sys.stdin:
        if line == "end\n":
            return
        answer = time.process_time() if line == "cpu\n" else len(shards.owned())
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def _blocking(url: str) -> None:
    def rests(shard: Shard) -> None:
        shard.wait_stop()

    shards = Shards("bench", _SHARDS, store=url)
    with shards.running(rests):
        _answer(shards)


async def _asynchronous(url: str) -> None:
    async def rests(shard: AsyncShard) -> None:
        await asyncio.Event().wait()

    shards = AsyncShards("bench", _SHARDS, store=url)
    async with shards.running(rests):
        await asyncio.to_thread(_answer, shards)


if __name__ == "__main__":
    if sys.argv[2] == "blocking":
        _blocking(sys.argv[1])
    else:
        asyncio.run(_asynchronous(sys.argv[1]))

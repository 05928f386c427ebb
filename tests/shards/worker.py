"""A member of a real fleet: beats for each shard that it has, into a journal of its own.

    worker.py STORE FOLDER HOLDER TTL blocking|asyncio

A line is `SHARD TOKEN INSTANT`: at that instant of incumbent.clock, which all processes of a host
share, the shard's lease was proved. The instant is taken before the proof is looked at, so a freeze
between the two, or after them, tells no lie.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from incumbent import AsyncShard, AsyncShards, Shard, Shards, clock

SHARDS = 64
_EVERY = 0.1


def main(store: str, folder: str, holder: str, ttl: str, side: str) -> None:
    journal = os.open(Path(folder) / f"{holder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def beat(shard: Shard | AsyncShard) -> None:
        now = clock.now()
        if shard.valid:
            os.write(journal, f"{shard.number} {shard.fencing_token} {now:.6f}\n".encode())

    def work(shard: Shard) -> None:
        while not shard.wait_stop(_EVERY):
            beat(shard)
        beat(shard)

    async def work_async(shard: AsyncShard) -> None:
        try:
            while True:
                beat(shard)
                await asyncio.sleep(_EVERY)
        finally:
            beat(shard)

    async def run_async() -> None:
        task = asyncio.current_task()
        assert task is not None
        # An exception that a handler raises ends the loop itself, wherever it is just then.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        shards = AsyncShards("orders", SHARDS, store=store, holder=holder, ttl=ttl)
        await shards.run(work_async)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if side == "blocking":
            Shards("orders", SHARDS, store=store, holder=holder, ttl=ttl).run(work)
        else:
            asyncio.run(run_async())
    except (KeyboardInterrupt, asyncio.CancelledError):
        os.write(journal, b"left 0 0\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A server as the look at a new connection sees it, without a server."""

from __future__ import annotations

from typing import Any

import hiredis

from incumbent.stores.redis.incarnation import Handshake, handshake
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.resp import SCRIPTS
from incumbent.stores.redis.site import MARKER_KEY, QUORUM_KEY, RedisSite

NOW = 1_700_000_000
PLAIN = {"run_id": "run1", "master_replid": "hist1", "master_replid2": "0000", "role": "master"}


class Server:
    """Answers as Redis does; `data` is what it stores."""

    def __init__(self, **info: str) -> None:
        self.info = {**PLAIN, **info}
        self.data: dict[str, bytes] = {}
        self.clock = float(NOW)
        self.trips = 0
        self.refuses: hiredis.ReplyError | None = None

    @property
    def text(self) -> bytes:
        return "".join(f"{name}:{said}\r\n" for name, said in self.info.items()).encode()

    def met_by(
        self,
        fresh: str,
        wall: float | None = None,
        *keys: str,
        promotion: int | None = None,
        longest: int = 0,
    ) -> Handshake:
        keys = keys or (MARKER_KEY,)
        program = handshake(
            RedisSite(RedisTarget(), "here", served=True, marker_keys=keys),
            wall=self.clock if wall is None else wall,
            fresh=fresh,
            promotion=promotion,
            longest=longest,
        )
        next(program)
        reads = [self.data.get(key) for key in (QUORUM_KEY, *keys)]
        time = [b"%d" % part for part in divmod(round(self.clock * 1e6), 1_000_000)]
        answers: list[Any] = [self.text, time, *reads, *[b"sha"] * len(SCRIPTS)]
        self.trips = 1
        try:
            while True:
                step = program.send(answers)
                self.trips += 1
                answers = list(self._written(step.payload))
        except StopIteration as end:
            found: Handshake = end.value
            return found

    def _written(self, payload: bytes) -> list[Any]:
        reader, written = hiredis.Reader(), list[Any]()
        reader.feed(payload)
        while (parts := reader.gets()) is not False:
            if parts[0] == b"EVAL":
                key, seen, text = parts[3].decode(), parts[4], parts[5]
                if self.refuses:
                    written.append(self.refuses)
                    continue
                if self.data.get(key, b"") == seen:
                    self.data[key] = text
                written.append(self.data.get(key, b""))
        return written

"""One blocking connection to a Redis server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hiredis

from incumbent.net.pool import Broken
from incumbent.net.wire import BlockingWire
from incumbent.stores.redis.exchange import AnyWire
from incumbent.stores.redis.resp import as_eval

if TYPE_CHECKING:
    from socket import socket


class Wire(BlockingWire, AnyWire):
    """See exchange.AnyWire. `ask` and `read` are no coroutines, and `next` blocks."""

    def __init__(self, sock: socket) -> None:
        AnyWire.__init__(self)
        BlockingWire.__init__(self, sock)
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets

    def ask(self, request: bytes, until: float) -> Any:
        """One request, one answer. Raises Broken."""
        self.send(request, until)
        # As `read`, but for a first look: nothing is there before the request has left.
        self._feed(self.receive(until))
        answer = self._gets()
        if answer is False:
            answer = self.read(until)
        if type(answer) is hiredis.ReplyError and str(answer).startswith("NOSCRIPT"):
            return self.ask(as_eval(request), until)
        return answer

    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        """Requests that leave together, and their answers. Raises Broken."""
        self.send(payload, until)
        return [self.read(until) for _ in range(answers)]

    async def next(self, until: float) -> Any:
        """The next answer or message. Raises Broken."""
        return self.read(until)

    def read(self, until: float) -> Any:
        """The same at once."""
        # hiredis says False where an answer is not complete; no answer in RESP 2 is a bool.
        while (answer := self._gets()) is False:
            self._feed(self.receive(until))
        return answer

    def buffered(self) -> Any:
        """A message that has been read already, or False. Raises Broken."""
        try:
            return self._gets()
        except hiredis.ProtocolError as error:
            raise Broken(str(error), sent=True) from error

    def fill(self) -> None:
        """Read what there is, without waiting for a whole message. Raises Broken."""
        if data := self.glance():
            self._feed(data)

"""A server that answers INFO as some do that speak Redis's protocol: it names no run of itself."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_BULK = re.compile(rb"\$(\d+)\r\n")
_NAMED = re.compile(rb"^(run_id|master_replid2?|process_id):.*\r\n", re.MULTILINE)


class AnonymousProxy:
    """Stands before a Redis server and leaves the ids of its runs and its data out of INFO."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.last_info = ""
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sock in (self._listener, *self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                self._open += (client, server)
                threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        _end(source, sink)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            while more := server.recv(65_536):
                data += more
                at = data.find(b"# Server")
                at = at if at >= 0 else data.find(b"# Replication")
                if at >= 0 and not self._is_whole(data, at):
                    continue
                client.sendall(self._without_ids(data, at) if at >= 0 else data)
                data = b""
        _end(server, client)

    @staticmethod
    def _is_whole(data: bytes, at: int) -> bool:
        head = list(_BULK.finditer(data, 0, at))[-1]
        return len(data) >= head.end() + int(head[1]) + 2

    def _without_ids(self, data: bytes, at: int) -> bytes:
        head = list(_BULK.finditer(data, 0, at))[-1]
        end = head.end() + int(head[1])
        info = _NAMED.sub(b"", data[head.end() : end])
        self.last_info = info.decode("utf-8", "replace")
        return b"%b$%d\r\n%b%b" % (data[: head.start()], len(info), info, data[end:])


def _end(*socks: socket.socket) -> None:
    for sock in socks:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

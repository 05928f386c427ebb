"""A reverse proxy that serves another listener below a path of its own, as nginx does.

`location /incumbent/ { proxy_pass http://127.0.0.1:8080/; }`: the path is cut off, and the Host is
that of the listener behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from urllib.parse import urlsplit


class _Proxy(BaseHTTPRequestHandler):
    path_of_its_own = behind = ""
    more: Mapping[str, str] = MappingProxyType({})

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        if not self.path.startswith(self.path_of_its_own):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        link = HTTPConnection(self.behind, timeout=30)
        headers = {**dict(self.headers.items()), "Host": self.behind, **self.more}
        where = "/" + self.path.removeprefix(self.path_of_its_own)
        link.request(self.command, where, body or None, headers)
        answer = link.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name not in ("Server", "Date"):
                self.send_header(name, value)
        self.end_headers()
        try:
            while piece := answer.read1(65_536):
                self.wfile.write(piece)
                self.wfile.flush()
        except OSError:
            pass
        link.close()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def below(path: str, url: str, **more: str) -> Iterator[str]:
    """The URL of a proxy before `url`; `more`: headers that it sets."""
    facts = {"path_of_its_own": path, "behind": urlsplit(url).netloc, "more": more}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Proxy", (_Proxy,), facts)) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}{path}"
        server.shutdown()

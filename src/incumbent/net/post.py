"""One HTTP request to a receiver of notifications, and the status of its answer.

Everything ends at one instant, from the look-up of the name to the last byte: a receiver that sends
a byte now and then cannot hold the caller for longer. The answer's body is not waited for.
"""

from __future__ import annotations

from contextlib import closing

from incumbent.net.dial import connect
from incumbent.net.http import Garbled, Reading
from incumbent.net.tls import Tls
from incumbent.net.wire import BlockingWire


def send_once(
    scheme: str, host: str, port: int, request: bytes, until: float
) -> tuple[int, float | None]:
    """Send the request on a connection of its own; return the status, and Retry-After in seconds.

    With "https" the certificate must match `host`. Raises OSError, Broken or Garbled, at `until` at
    the latest.
    """
    tls = Tls().context() if scheme == "https" else None
    with closing(BlockingWire(connect(host, port, until, tls=tls))) as wire:
        wire.send(request, until)
        reading, data = Reading(), b""
        while True:
            try:
                reading.feed(data or wire.receive(until))
            except Garbled:
                # Whatever is wrong with the body, the status was said.
                if reading.status < 200:
                    raise
            if reading.status >= 200:
                after = reading.header(b"retry-after")
                return reading.status, float(after[:9]) if after.isdigit() else None
            data = b""
            if reading.status:
                # An interim answer, such as 103: another one follows. It has no body: what was read
                # beyond its head is the next one's beginning.
                reading, data = Reading(), reading.body

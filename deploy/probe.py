"""Asks the health page of this very container: probe.py /healthz. Exit 0 if the answer is 200.

Probes run it instead of calling over the network, so that the page can stay on loopback.
INCUMBENT_LISTEN says where it is.
"""

from __future__ import annotations

import http.client
import os
import sys

WITHIN = 2.0


def main() -> int:
    path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
    where = os.environ.get("INCUMBENT_LISTEN", "127.0.0.1:8080")
    page = http.client.HTTPConnection(where, timeout=WITHIN)
    try:
        page.request("GET", path)
        return 0 if page.getresponse().status == http.client.OK else 1
    except (OSError, http.client.HTTPException) as error:
        print(f"probe: {where}{path}: {error}", file=sys.stderr)
        return 1
    finally:
        page.close()


if __name__ == "__main__":
    sys.exit(main())

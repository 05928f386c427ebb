"""Whether this machine has a Valkey server: few releases carry it yet."""

from __future__ import annotations

from tests.support.servers import ServerMissing, find_server


def _have() -> bool:
    try:
        find_server("valkey-server")
    except ServerMissing:
        return False
    return True


HAVE = _have()
WHY = "no valkey-server: scripts/servers.sh brings it where Debian (or its backports) has it"

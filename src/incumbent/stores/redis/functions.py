"""The scripts as a library of functions, for users who may call functions and send no scripts.

`incumbent doctor --fix` loads it; so does
`python -m incumbent.stores.redis.functions | redis-cli -x FUNCTION LOAD REPLACE`.

A server (from Redis 7) keeps functions over restarts, and replicas and snapshots have them too. All
names change with any of the scripts, so that two releases can be served at the same time: a server
refuses a library that has a function of the name of another library's.
"""

from __future__ import annotations

import re
import sys
from hashlib import sha1
from typing import Final

from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.incarnation import MARKER
from incumbent.stores.redis.resp import SCRIPTS

__all__ = [
    "LIBRARIES",
    "LIBRARY",
    "LIBRARY_NAME",
    "MARKER_FUNCTION",
    "RENEW_FUNCTION",
    "FunctionCommands",
]

_ALL: Final = {**SCRIPTS, "marker": MARKER}
_DIGEST: Final = sha1(
    b"".join(sorted(script.sha for script in _ALL.values())), usedforsecurity=False
).hexdigest()[:8]
_NAMES: Final = {script.sha: f"incumbent_{name}_{_DIGEST}" for name, script in _ALL.items()}

_FLAGS: Final = dict.fromkeys(("give", "renew"), "'allow-oom'")
"""A server out of memory refuses all functions but these; of a script it refuses commands."""

LIBRARIES: Final = "incumbent_"
"""How the names of the libraries of all releases begin."""
LIBRARY_NAME: Final = f"{LIBRARIES}{_DIGEST}"
LIBRARY: Final = "\n".join(
    [
        f"#!lua name={LIBRARY_NAME}",
        *(
            f"redis.register_function{{function_name='{_NAMES[script.sha]}',"
            f" flags={{{_FLAGS.get(name, '')}}}, callback=function(KEYS, ARGV)\n"
            f"{script.text.decode()}end}}"
            for name, script in _ALL.items()
        ),
    ]
)
"""What FUNCTION LOAD takes."""

MARKER_FUNCTION: Final = _NAMES[MARKER.sha]
RENEW_FUNCTION: Final = _NAMES[SCRIPTS["renew"].sha]

_EVALSHA: Final = re.compile(rb"\$7\r\nEVALSHA\r\n\$40\r\n([0-9a-f]{40})\r\n")


def _as_call(request: bytes) -> bytes:
    """The same request by the function's name."""
    return _EVALSHA.sub(_call, request, count=1)


def _call(found: re.Match[bytes]) -> bytes:
    name = _NAMES[found[1]].encode()
    return b"$5\r\nFCALL\r\n$%d\r\n%b\r\n" % (len(name), name)


class FunctionCommands(Commands):
    """As Commands, by functions."""

    adapt = staticmethod(_as_call)


if __name__ == "__main__":
    sys.stdout.write(LIBRARY)

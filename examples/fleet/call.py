"""The job: one call, with the slot and the fencing token that it is made under."""

import os
import sys
import urllib.request

request = urllib.request.Request(
    sys.argv[1],
    headers={
        "X-Slot": os.environ["INCUMBENT_LEASE_SLOT"],
        "X-Term": os.environ["INCUMBENT_LEASE_TERM"],
    },
)
with urllib.request.urlopen(request, timeout=10) as answer:
    print(answer.read().decode())

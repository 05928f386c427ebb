"""One instance of the example: `incumbent` with a wall clock that is wrong by CLOCK_OFF seconds."""

import os
import sys
import time

from incumbent import clock
from incumbent.cli.main import main

OFF = float(os.environ.get("CLOCK_OFF", "0"))
clock.wall = lambda: time.time() + OFF

if __name__ == "__main__":
    sys.exit(main())

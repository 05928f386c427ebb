"""`python -m incumbent`: the same as the `incumbent` command."""

import sys

from incumbent.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

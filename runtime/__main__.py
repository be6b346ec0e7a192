"""`python -m runtime` is the console script `stepgraph`."""

import sys

from runtime.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

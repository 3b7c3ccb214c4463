"""``python -m hiddenstate``: the command line."""

import sys

from hiddenstate.cli import main

if __name__ == "__main__":
    sys.exit(main())

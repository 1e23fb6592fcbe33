"""``python -m fourtap``: the commands ``doctor``, ``cache`` and ``bake``."""

from __future__ import annotations

import signal
import sys

from fourtap import _native


def main() -> int:
    """Run the command line with this process's arguments, and return its exit code."""
    # Python's handler only sets a flag, so Ctrl-C would wait for the end of the command.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.command_line(["fourtap", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())

"""The front door: the installed `headrace` and `python -m headrace` alike.

The commands are imported when one is run, not when this module is: a process that is spawned runs its
parent's main script too, and the engine's would spend a second on commands and HTTP that it never uses.
Ctrl-C counts from the first moment, while they are still being imported.
"""

import sys
from importlib import import_module

INTERRUPTED = 130


def run() -> None:
    """The entry point of the installed script."""
    try:
        commands = import_module("headrace.cli.main")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    commands.main()


if __name__ == "__main__":
    run()

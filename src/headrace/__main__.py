"""The front door: the installed `headrace` and `python -m headrace` alike.

Ctrl-C counts from the first moment, while the commands are still being imported.
"""

import sys

INTERRUPTED = 130

try:
    from headrace.cli.main import main
except KeyboardInterrupt:
    sys.exit(INTERRUPTED)


def run() -> None:
    """The entry point of the installed script."""
    main()


if __name__ == "__main__":
    run()

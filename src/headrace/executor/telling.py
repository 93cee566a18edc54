"""Progress for a person, on stderr: stdout belongs to whoever called."""

import sys


def say(line: str) -> None:
    sys.stderr.write(f"headrace: {line}\n")
    sys.stderr.flush()

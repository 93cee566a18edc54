"""Limits that may be tightened and never loosened: lengths of functions and files, waivers with reasons.

Complexity, arguments and branches are ruff's to count; this counts what ruff does not.
Prints every place over a limit and exits 1 if there is one.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MOST_FUNCTION_LINES = 50
MOST_FILE_LINES = 400
MOST_WAIVERS = 15  # lower it when one goes; raising it needs a very good reason

ROOTS = ("src", "tests", "bench", "tools")
WAIVER = re.compile(r"#\s*(noqa|type:\s*ignore|pyright:\s*ignore|pragma:\s*no cover)(?P<rest>.*)")
REASON = re.compile(r"#\s*\w{2,}.*$|[-:]\s+\w{2,}.*$")


def main() -> int:
    complaints: list[str] = []
    waivers = 0
    for path in sorted(path for root in ROOTS for path in Path(root).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        if len(lines) > MOST_FILE_LINES:
            complaints.append(f"{path}: {len(lines)} lines, at most {MOST_FILE_LINES}")
        complaints += long_functions(path, text)
        for number, line in waiver_lines(lines):
            waivers += 1
            if not REASON.search(line):
                complaints.append(f"{path}:{number}: a waiver without a reason beside it")
    if waivers > MOST_WAIVERS:
        complaints.append(f"{waivers} waivers, at most {MOST_WAIVERS}: mend the code instead")
    for complaint in complaints:
        print(complaint)
    print(f"ratchets: {waivers} of {MOST_WAIVERS} waivers, {len(complaints)} over a limit")
    return 1 if complaints else 0


def long_functions(path: Path, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None, "a parsed function has an end"
            length = node.end_lineno - node.lineno + 1
            if length > MOST_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, at most {MOST_FUNCTION_LINES}"


def waiver_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Comments that silence a tool; the pattern in this file's own source is not one."""
    for number, line in enumerate(lines, start=1):
        if (found := WAIVER.search(line)) and "re.compile" not in line:
            yield number, found["rest"]


if __name__ == "__main__":
    sys.exit(main())

"""The last part of docs/doctor.md, from what the rules say of themselves.

python tools/doctor_rules.py            exit code 1 where the two differ
python tools/doctor_rules.py --write    put them into the page
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from headrace.diagnose.doctor import ROOMS

PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
HEADING = "## Rules, and on what mechanism each rests\n"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, _, written = page.partition(HEADING)
    now = "\n" + "\n".join(_sections())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(before + HEADING + now, encoding="utf-8")
        return 0
    if written != now:
        print(f"{PAGE.name} says otherwise than the rules: python tools/doctor_rules.py --write")
        return 1
    return 0


def _sections() -> Iterator[str]:
    for place, room in enumerate(ROOMS):
        about = (inspect.getdoc(room) or "").split("\n\n")[0]
        yield f"{chr(10) * bool(place)}### {room.__name__.rpartition('.')[2]}: {_one_line(about)}\n"
        yield "| rule | mechanism |\n|---|---|"
        yield from (f"| `{rule.__name__}` | {_one_line(inspect.getdoc(rule) or '')} |" for rule in room.RULES)
    yield ""


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())

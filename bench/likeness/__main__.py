"""What `diagnose/data/likeness.tsv` is fitted to, and how well it judges what it was not:

    python -m bench.likeness            cross-validated: of fresh incidents how many are judged right
    python -m bench.likeness --write    fit to all of them, and write the table

Each fold of fresh incidents (8, drawn with a seed) is judged by weights fitted to everything else. With
--json one line: {"cases": …, "primary_right": …, "any_right": …, "must_not_said": …, "rules_alone_right": …}.
"""

import argparse
import json
import sys
from pathlib import Path

from bench.likeness.fit import cross_validated, fitted, written
from bench.likeness.incidents import Origin, solved
from headrace.diagnose import likeness

TABLE = Path(likeness.__file__).with_name("data") / "likeness.tsv"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="fit to all, and write the table")
    parser.add_argument("--folds", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="the score as one line")
    given = parser.parse_args()
    incidents = solved()
    print(
        ", ".join(f"{sum(each.origin is o for each in incidents)} {o.name.lower()}" for o in Origin),
        file=sys.stderr,
    )
    if given.write:
        text = written(fitted(incidents))
        TABLE.write_text(text, encoding="utf-8")
        print(f"{len(text.splitlines()) - 2} traits, {len(text):,} bytes")
        return 0
    score = cross_validated(incidents, given.folds)
    print(
        json.dumps(score) if given.json else "\n".join(f"{name:20} {value}" for name, value in score.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

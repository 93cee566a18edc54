"""How well `doctor` judges incidents that others solved: `python -m bench.doctor --cases DIR [--json]`.

Each case is a JSON file {id, engine, version, flags, metrics, log, hardware, workload, expected}; what was
expected is not shown to the doctor. The first of its labels is the primary one.

    primary_right       the first finding's label is the primary one
    any_right           some finding has one of the expected labels
    must_not_said       cases in which some finding has a label that the report contradicts
    undetermined_right  of the cases where "cannot tell" is right, those where it was said first

`--half` scores only one half: which cases were looked at while rules were written, and which were not, was
drawn once with the seed below.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.diagnose.doctor import diagnose
from headrace.diagnose.finding import Finding, Label
from headrace.diagnose.readers.incident import read_incident

SEED = 20261130
_IS_CASE = re.compile(r"[A-Z]+\d+")


@dataclass(frozen=True, slots=True)
class Judged:
    case: str
    expected: tuple[str, ...]
    forbidden: frozenset[str]
    primary: str
    said: frozenset[str]
    rules: tuple[str, ...]

    @property
    def primary_right(self) -> bool:
        return bool(self.expected) and self.primary == self.expected[0]

    @property
    def any_right(self) -> bool:
        return not self.said.isdisjoint(self.expected)

    @property
    def must_not_said(self) -> bool:
        return not self.said.isdisjoint(self.forbidden)


def halves(cases: Sequence[str]) -> tuple[set[str], set[str]]:
    """(looked at, held out)."""
    shuffled = sorted(cases)
    random.Random(SEED).shuffle(shuffled)
    middle = len(shuffled) // 2
    return set(shuffled[:middle]), set(shuffled[middle:])


def judge(path: Path) -> Judged:
    case = json.loads(path.read_text(encoding="utf-8"))
    expected = case.get("expected", {})
    shown = {key: value for key, value in case.items() if key not in {"expected", "id", "source"}}
    findings = diagnose(read_incident(shown, "incident")).findings
    return judged(
        path.stem, tuple(expected.get("labels", ())), frozenset(expected.get("not_labels", ())), findings
    )


def judged(
    case: str, expected: tuple[str, ...], forbidden: frozenset[str], findings: Sequence[Finding]
) -> Judged:
    """What was found of a case, beside what should be and what must not."""
    return Judged(
        case,
        expected,
        forbidden,
        str(findings[0].label) if findings else "",
        frozenset(str(label) for f in findings for label in (f.label, *f.also)),
        tuple(f"{f.rule}:{f.label}" for f in findings),
    )


def score(judged: Sequence[Judged]) -> dict[str, int | float]:
    unknown = [each for each in judged if each.expected[:1] == (str(Label.UNDETERMINED),)]
    count = max(len(judged), 1)
    return {
        "cases": len(judged),
        "primary_right": sum(each.primary_right for each in judged),
        "primary_share": round(sum(each.primary_right for each in judged) / count, 4),
        "any_right": sum(each.any_right for each in judged),
        "must_not_said": sum(each.must_not_said for each in judged),
        "undetermined_cases": len(unknown),
        "undetermined_right": sum(each.primary_right for each in unknown),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=Path, required=True, help="a folder of C001.json, …")
    parser.add_argument("--json", action="store_true", help="the score as one line")
    parser.add_argument("--half", choices=("looked-at", "held-out"), help="only this half")
    parser.add_argument("--misses", action="store_true", help="print the cases that were not judged right")
    given = parser.parse_args()
    paths = {path.stem: path for path in sorted(given.cases.glob("*.json")) if _IS_CASE.fullmatch(path.stem)}
    if not paths:
        print(f"no case (C001.json) in {given.cases}", file=sys.stderr)
        return 2
    looked_at, held_out = halves(list(paths))
    chosen = {"looked-at": looked_at, "held-out": held_out}.get(given.half, set(paths))
    results = [judge(path) for case, path in paths.items() if case in chosen]
    for each in results if given.misses else ():
        if not each.primary_right or each.must_not_said:
            wrong = " MUST NOT " + ",".join(each.said & each.forbidden) if each.must_not_said else ""
            print(f"{each.case}: expected {','.join(each.expected)}; said {' '.join(each.rules)}{wrong}")
    result = score(results)
    print(
        json.dumps(result)
        if given.json
        else "\n".join(f"{name:20} {value}" for name, value in result.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

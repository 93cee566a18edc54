"""For each rule that computes with a number: an incident in which it speaks, and the nearest one in which it
does not, with one number moved. `of` is a name in incidents.jsonl, `but` what is otherwise.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.diagnose.doctor import RULES
from headrace.diagnose.readers.incident import read_incident

HERE = Path(__file__).parent


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


INCIDENTS = {incident["name"]: incident for incident in _lines("incidents.jsonl")}
BY_NAME = {rule.__name__: rule for rule in RULES}


def speaks(rule: str, incident: dict[str, Any]) -> bool:
    shown = {key: value for key, value in incident.items() if key not in {"name", "label", "never"}}
    return any(True for _ in BY_NAME[rule](read_incident(shown, "incident")))


@pytest.mark.parametrize("row", _lines("nearest.jsonl"), ids=lambda row: row["rule"])
def test_a_rule_is_silent_beside_what_it_is_for(row: dict[str, Any]) -> None:
    incident = INCIDENTS[row["of"]]
    beside = incident | {part: incident[part] | values for part, values in row["but"].items()}

    assert speaks(row["rule"], incident)
    assert not speaks(row["rule"], beside)

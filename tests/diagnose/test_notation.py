"""The same incident in other spellings is judged the same: people write numbers as they find them."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.diagnose.doctor import diagnose
from headrace.diagnose.readers.incident import read_incident

INCIDENTS = [
    json.loads(line)
    for line in Path(__file__).with_name("incidents.jsonl").read_text(encoding="utf-8").splitlines()[::2]
]
Metrics = Mapping[str, Any]
_UNIT = re.compile(r"_ms(?=_|$)")


def _each(value: Any, change: Callable[[float], Any]) -> Any:
    if isinstance(value, list):
        return [_each(part, change) for part in value]
    return change(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _seconds(name: str, value: Any) -> tuple[str, Any]:
    return (_UNIT.sub("_s", name), _each(value, lambda v: v / 1000)) if _UNIT.search(name) else (name, value)


def _as_text(name: str, value: Any) -> tuple[str, Any]:
    return name, _each(value, lambda v: f"{v:,}")


def _tokens_per_second(name: str, value: Any) -> tuple[str, Any]:
    return (name if name.startswith("vllm:") else name.replace("tok_s", "tokens_per_second")), value


def _dashes(name: str, value: Any) -> tuple[str, Any]:
    return (name.replace("_", "-") if name.startswith(("client:", "host:", "startup:")) else name), value


def _no_prefix(name: str, value: Any) -> tuple[str, Any]:
    return name.removeprefix("client:"), value


def _median(name: str, value: Any) -> tuple[str, Any]:
    return re.sub(r"^client:(ttft|itl|tpot|e2e)_p50_(s|ms)$", r"client:median_\1_\2", name), value


SPELLINGS = (_seconds, _as_text, _tokens_per_second, _dashes, _no_prefix, _median)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_another_spelling_is_judged_the_same(spelling: Callable[[str, Any], tuple[str, Any]]) -> None:
    changed = 0
    for incident in INCIDENTS:
        metrics: Metrics = incident.get("metrics", {})
        spelt = dict(spelling(name, value) for name, value in metrics.items())
        if spelt == metrics:
            continue
        changed += 1
        shown = {key: value for key, value in incident.items() if key not in {"name", "label", "never"}}
        found = diagnose(read_incident(shown | {"metrics": spelt}, "incident")).findings
        assert (found[0].label if found else "") == incident["label"], incident["name"]
    assert changed >= 3

"""A page of /metrics as samples, whatever is wrong with it.

    lines -> samples_of -> Page(samples, skipped lines, lines left out)

Each line is read for itself by prometheus_client, so a line that is cut off or no sample costs only
itself. Memory is bounded by `MOST_SAMPLES`, however many labels somebody made.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

MOST_SAMPLES = 50_000
LONGEST_LINE = 8192


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    samples: tuple[Sample, ...]
    malformed: int
    """Lines that are no sample."""
    left_out: int
    """Samples beyond `MOST_SAMPLES`."""


def samples_of(lines: Iterable[str], prefixes: tuple[str, ...] = ("",)) -> Page:
    """The samples whose name starts with one of `prefixes`."""
    samples, malformed, left_out = list[Sample](), 0, 0
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not text.startswith(prefixes):
            malformed += " " not in text
            continue
        if len(samples) >= MOST_SAMPLES:
            left_out += 1
        elif (sample := _sample(text)) is None:
            malformed += 1
        else:
            samples.append(sample)
    return Page(tuple(samples), malformed, left_out)


def _sample(line: str) -> Sample | None:
    if len(line) > LONGEST_LINE:
        return None
    try:
        found = next(iter(text_string_to_metric_families(line + "\n"))).samples[0]
        return Sample(found.name, found.labels, float(found.value))
    except (ValueError, IndexError, KeyError, StopIteration, TypeError):
        return None

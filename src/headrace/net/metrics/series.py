"""Numbers that cost next to nothing to change, and become Prometheus' text when somebody asks.

    sheet.counter(name, text) -> Counter   counter.value += 1    thousands of times a second
    prometheus_client asks    -> collect() -> Metric, ...        every 15 s

prometheus_client's own counters and histograms lock and check at each change, which made up
2 µs for every token; all of this is changed in one thread. The text remains that library's.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.utils import floatToGoString

ENGINE = "0"
"""vLLM's label for the data-parallel rank; there is one."""

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]
"""What is added to the name, what is added to the labels, and the value."""


class Source(Protocol):
    """What a series is read from."""

    kind: str

    def samples(self) -> Iterator[Sample]: ...


class Counter:
    """It only grows: whoever changes it sees to that."""

    __slots__ = ("value",)
    kind = "counter"

    def __init__(self) -> None:
        self.value = 0.0

    def samples(self) -> Iterator[Sample]:
        yield "_total", {}, self.value


class Gauge:
    __slots__ = ("value",)
    kind = "gauge"

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def samples(self) -> Iterator[Sample]:
        yield "", {}, self.value


class Live:
    """A gauge that is looked up when somebody asks."""

    __slots__ = ("_read",)
    kind = "gauge"

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    def samples(self) -> Iterator[Sample]:
        yield "", {}, self._read()


class Distribution:
    """A histogram: how many values were at most each edge, and their sum."""

    __slots__ = ("_counts", "_edges", "_sum")
    kind = "histogram"

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = tuple(edges)
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[Sample]:
        at_most = list(accumulate(self._counts))
        for edge, count in zip((*self._edges, float("inf")), at_most, strict=True):
            yield "_bucket", {"le": floatToGoString(edge)}, count
        yield "_count", {}, at_most[-1]
        yield "_sum", {}, self._sum


Made = TypeVar("Made", bound=Source)


@dataclass(frozen=True, slots=True)
class _Series:
    """One name, and for each set of labels where its value comes from."""

    name: str
    text: str
    sources: Sequence[tuple[Labels, Source]]

    def collect(self, created_at: float) -> Metric:
        kind = self.sources[0][1].kind
        metric = Metric(self.name, self.text, kind)
        for labels, source in self.sources:
            for suffix, more, value in source.samples():
                metric.add_sample(self.name + suffix, {**labels, **more}, value)
            if kind != "gauge":
                metric.add_sample(self.name + "_created", dict(labels), created_at)
        return metric


class Sheet:
    """All numbers of one served model, in the registry that asks for them."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._labels = {"model_name": model_name, "engine": ENGINE}
        self._series: list[_Series] = []
        self._created_at = time.time()
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client."""
        return (series.collect(self._created_at) for series in self._series)

    def counter(self, name: str, text: str) -> Counter:
        return self._one(name, text, Counter())

    def gauge(self, name: str, text: str, value: float = 0.0) -> Gauge:
        return self._one(name, text, Gauge(value))

    def live(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._one(name, text, Live(read))

    def distribution(self, name: str, text: str, edges: Sequence[float]) -> Distribution:
        return self._one(name, text, Distribution(edges))

    def counters(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        """One for each of `values`, told apart by `label`."""
        return self._several(name, text, [({**self._labels, label: value}, Counter()) for value in values])

    def gauges(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Gauge]:
        return self._several(name, text, [({**self._labels, label: value}, Gauge()) for value in values])

    def before_engines(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        """Counters of what happens before an engine is chosen: so without its label, as in vLLM."""
        model = {"model_name": self._labels["model_name"]}
        return self._several(name, text, [({**model, label: value}, Counter()) for value in values])

    def facts(self, name: str, text: str, **facts: object) -> None:
        """What does not change: a 1 whose labels speak."""
        labels = {"engine": ENGINE, **{label: str(fact) for label, fact in facts.items()}}
        self._series.append(_Series(name, text, [(labels, Gauge(1))]))

    def _one(self, name: str, text: str, source: Made) -> Made:
        self._series.append(_Series(name, text, [(self._labels, source)]))
        return source

    def _several(self, name: str, text: str, made: list[tuple[Labels, Made]]) -> dict[str, Made]:
        """By the value of their last label."""
        self._series.append(_Series(name, text, made))
        return {tuple(labels.values())[-1]: source for labels, source in made}


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to `largest`: vLLM's edges for token counts."""
    edges: list[float] = []
    decade = 1
    while decade <= largest:
        edges += [edge for edge in (decade, 2 * decade, 5 * decade) if edge <= largest]
        decade *= 10
    return tuple(edges)

"""One judgement of many choices at once: in processes of this machine, or over a Ray cluster.

    judge (picklable: choice -> result), [choice, ...]  -->  [result | Unjudged, ...]   in that order

It stands here because nothing below may start processes for its own sake: a simulation is pure, and
`tune` is handed a judge and told nothing of where it runs. Only the command line asks for many at once.

A judge is sent to each process once, with all that it needs; workers are spawned, never forked, so
nothing of this process comes along. Ray is imported when it is asked for, and not before.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

from headrace.core.errors import BadInput, HeadraceError
from headrace.core.ports import Overrides

C = TypeVar("C")
R = TypeVar("R")
OnDone = Callable[[int], None]
"""Told after each result how many there are."""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Settings that came to nothing. A result like others, not the end of them."""

    cause: str


@dataclass(frozen=True, slots=True)
class _Worker(Generic[C, R]):
    """What runs elsewhere. An error that a person is meant to read becomes a result."""

    judge: Callable[[C], R]

    def __call__(self, choice: C) -> R | Unjudged:
        try:
            return self.judge(choice)
        except HeadraceError as error:
            return Unjudged(str(error))


_INSTALLED: list[_Worker[Any, Any]] = []
"""In a worker process: its judge, once it has been sent."""


def judge_in_processes(
    judge: Callable[[C], R], choices: Sequence[C], workers: int, on_done: OnDone
) -> list[R | Unjudged]:
    """Raises `BadInput` for fewer than one worker. A worker that is killed takes the open ones along."""
    if workers < 1:
        raise BadInput(f"{workers} workers; at least one is needed")
    with ProcessPoolExecutor(
        min(workers, len(choices)), get_context("spawn"), initializer=_install, initargs=(_Worker(judge),)
    ) as pool:
        futures: list[Future[R | Unjudged]] = [pool.submit(_judge_here, choice) for choice in choices]
        try:
            for done, _ in enumerate(as_completed(futures), start=1):
                on_done(done)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [_result_of(future) for future in futures]


def judge_over_ray(
    judge: Callable[[C], R], choices: Sequence[C], address: str, on_done: OnDone
) -> list[R | Unjudged]:
    """One task for each choice. Raises `BadInput` where Ray is not installed or not to be reached."""
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise BadInput("Ray is not installed", "pip install 'headrace[ray]'") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # one that it starts here would send statistics
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(f"no Ray cluster at {address}: {error}", "ray start --head") from error
    try:
        worker = ray.put(_Worker(judge))
        task = ray.remote(_judge_there)
        waiting = references = [task.remote(worker, choice) for choice in choices]
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=1)
            on_done(len(references) - len(waiting))
        return [_fetched(ray, reference) for reference in references]
    finally:
        ray.shutdown()


def _install(worker: _Worker[Any, Any]) -> None:
    _INSTALLED.append(worker)


def _judge_here(choice: Any) -> Any:
    return _INSTALLED[0](choice)


def _judge_there(worker: _Worker[C, R], choice: C) -> R | Unjudged:
    return worker(choice)


def _result_of(future: "Future[R | Unjudged]") -> R | Unjudged:
    try:
        return future.result()
    except BrokenProcessPool:
        return Unjudged("a worker process died; the machine may be out of memory: try fewer --workers")


def _fetched(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return Unjudged(f"Ray: {str(error).splitlines()[0]}")


def product_of(values: Iterable[tuple[str, Sequence[Any]]]) -> list[Overrides]:
    """Every combination, the last name changing fastest."""
    choices: list[Overrides] = [{}]
    for name, each in values:
        choices = [{**choice, name: value} for choice in choices for value in each]
    return choices

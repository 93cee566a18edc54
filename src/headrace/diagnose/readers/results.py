"""What a load generator saw: a measurement of ours, or the result file of `vllm bench serve`.

Measurement | {"mean_ttft_ms": …} -> Evidence of `client:…` and `workload:…` readings
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from headrace.core.bill import CAUSES
from headrace.core.measurement import Measurement
from headrace.core.timeline import Timeline
from headrace.diagnose.evidence import Evidence, Flag, Reading, Value
from headrace.diagnose.flag_history import history
from headrace.diagnose.readers.text import plain

_STATS = ("mean", "median", "p50", "p90", "p95", "p99")


def is_bench_result(value: Mapping[str, object]) -> bool:
    return "request_throughput" in value and "completed" in value


def read_bench_result(value: Mapping[str, object], where: str) -> Evidence:
    """Of `vllm bench serve --save-result`, with `--save-detailed` or without."""
    names = {
        "output_throughput": "client:output_tok_s",
        "request_throughput": "client:requests_per_s",
        "failed": "client:failed",
        "completed": "client:completed",
        "max_concurrency": "workload:client_concurrency",
        "max_concurrent_requests": "client:max_concurrent",
        "request_rate": "workload:request_rate",
        "num_prompts": "workload:requests",
        "model_id": "workload:model",
    }
    for stat in _STATS:
        for quantity in ("ttft", "tpot", "itl", "e2el", "client_queue_time"):
            names[f"{stat}_{quantity}_ms"] = f"client:{quantity}_{stat}_ms"
    readings = {
        name: Reading(name, (entry,), f"{where} {key}")
        for key, name in names.items()
        if isinstance(entry := value.get(key), int | float | str)
    }
    return Evidence(readings=dict(_of_each_request(value, where)) | readings, sources=(where,))


_LISTS = (("ttfts", "ttft"), ("itls", "itl"), ("latencies", "e2el"), ("queue_times", "client_queue_time"))
"""Lists of `--save-detailed` in seconds (of lists, for itls), and what they are called here."""
_MOST_REQUESTS = 10_000


def _of_each_request(value: Mapping[str, object], where: str) -> Iterator[tuple[str, Reading]]:
    """What `--save-detailed` adds: the statistics that `--percentile-metrics` left out, lengths, errors."""
    for key, name in (("input_lens", "workload:prompt_tokens"), ("output_lens", "workload:output_tokens")):
        if lengths := _numbers(value.get(key)):
            counts = tuple[Value, ...](lengths[:_MOST_REQUESTS])
            yield name, Reading(name, counts, f"{where} {key}")
    closed = value.get("request_rate") == "inf" and value.get("max_concurrency") is not None
    for key, quantity in _LISTS:
        if key == "queue_times" and closed:
            continue  # nothing was due before a place was free: to wait for one is how that load is made
        # One that failed has zeros.
        if times := [n for n in _numbers(value.get(key)) if n > 0]:
            for stat, share in (("mean", None), ("median", 50), ("p99", 99)):
                ms = 1e3 * float(np.mean(times) if share is None else np.percentile(times, share))
                name = f"client:{quantity}_{stat}_ms"
                yield name, Reading(name, (ms,), f"{where} {key}")
    errors = value.get("errors")
    told = sorted({str(e).strip() for e in errors if e}) if isinstance(errors, list) else []
    if told:
        last = [plain(text.splitlines()[-1])[:200] for text in told[:3]]
        yield "client:error", Reading("client:error", tuple[Value, ...](last), f"{where} errors")


def _numbers(value: object) -> list[float]:
    """Of a list, or a list of lists; empty where it holds anything else, or nothing."""
    if not isinstance(value, list):
        return []
    flat = [n for part in value for n in (part if isinstance(part, list) else (part,))]
    good = all(isinstance(n, int | float) and math.isfinite(n) for n in flat)
    return [float(n) for n in flat] if good else []


def from_measurement(measurement: Measurement, where: str) -> Evidence:
    """Latencies by class, failures, and where the time went, if the server keeps bills."""
    values = dict[str, tuple[Value, ...]]()
    values["workload:model"] = (measurement.model,)
    values["client:failed"] = (float(len(measurement.failures)),)
    values["client:completed"] = (float(len(measurement.timelines)),)
    values["client:output_tok_s"] = (
        measurement.per_s(sum(len(line.token_at) for line in measurement.timelines)),
    )
    for name in {line.request_class for line in measurement.timelines}:
        of_class = [line for line in measurement.timelines if line.request_class == name]
        values |= _latencies(of_class, f"_{name}" if name else "")
    if measurement.timelines:
        values |= _latencies(measurement.timelines, "")
        values["workload:prompt_tokens"] = tuple(float(t.prompt_tokens) for t in measurement.timelines)
        values["client:cached_share"] = (_cached_share(measurement.timelines),)
        lag = [line.dispatch_lag_s for line in measurement.timelines]
        values["client:dispatch_lag_p99_s"] = (float(np.percentile(lag, 99)),)
    ours = _is_ours(measurement)
    return Evidence(
        engine="headrace" if ours else "",
        flags={
            name.replace("_", "-"): Flag(value, f"{where} settings")
            for name, value in measurement.settings.items()
            if ours or name.replace("_", "-") in history().spans  # a twin's record has words of its own
        },
        readings={name: Reading(name, value, where) for name, value in values.items()},
        sources=(where,),
    )


def _is_ours(measurement: Measurement) -> bool:
    """Only our engine keeps bills; a simulated record has them too, of whatever machine it stands for."""
    simulated = measurement.target.startswith("twin")
    return not simulated and any(line.bill_s for line in measurement.timelines)


def _latencies(timelines: tuple[Timeline, ...] | list[Timeline], suffix: str) -> dict[str, tuple[Value, ...]]:
    ttft = [line.ttft_s for line in timelines]
    gaps = [gap for line in timelines for gap in line.itl_s]
    found: dict[str, tuple[Value, ...]] = {
        f"client:ttft_p50_s{suffix}": (float(np.percentile(ttft, 50)),),
        f"client:ttft_p99_s{suffix}": (float(np.percentile(ttft, 99)),),
    }
    if gaps:
        found[f"client:itl_p50_s{suffix}"] = (float(np.percentile(gaps, 50)),)
        found[f"client:itl_p99_s{suffix}"] = (float(np.percentile(gaps, 99)),)
    bills = [line.bill_s for line in timelines if line.bill_s is not None]
    for cause in CAUSES if bills else ():
        found[f"client:bill_{cause.value}_s{suffix}"] = (sum(b.get(cause, 0.0) for b in bills) / len(bills),)
    return found


def _cached_share(timelines: tuple[Timeline, ...]) -> float:
    prompt = sum(line.prompt_tokens for line in timelines)
    return sum(line.cached_tokens for line in timelines) / prompt if prompt else 0.0

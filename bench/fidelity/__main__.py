"""How near the twin comes: `python -m bench.fidelity --target reference|embedded|vllm [--json]`.

reference   a stored run of vLLM 0.19 on a GPU: calibrated on its first 100 requests, judged on the
            other 200, whose timings nothing before the table looks at
embedded    this machine: calibrated, predicted, then measured; about 12 minutes, `--quick` about 4
vllm        real vLLM on this machine's CPU, in the environment of `make vllm`: calibrated, predicted, then
            measured under 12 settings, a start each; some 45 minutes, or in parts that join in one record:
            --record FILE.jsonl --points 0-3, later --points 4-7

tables, then as the last line: {"median_error_pct": ..., "worst_error_pct": ..., ...}
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.fidelity import embedded, vllm
from bench.fidelity.calibrate import Calibration, as_text, calibrate
from bench.fidelity.record import Record
from bench.fidelity.reference import (
    AUTHORS_ERROR_PCT,
    CALIBRATED_ON,
    Lives,
    Reference,
    load,
    predict,
    roofline,
)
from headrace.capacity.roofline import Multipliers, Roofline
from headrace.cli.costs import save

FIRST, REST = slice(0, CALIBRATED_ON), slice(CALIBRATED_ON, None)

METRICS: dict[str, tuple[str, float, Callable[[Lives], float]]] = {
    "ttft_p50": ("TTFT P50, s", 1.0, lambda lives: float(np.median(lives.ttft_s))),
    "ttft_p95": ("TTFT P95, s", 1.0, lambda lives: float(np.quantile(lives.ttft_s, 0.95))),
    "tpot_mean": ("TPOT mean, ms", 1e3, lambda lives: float(np.mean(lives.tpot_s))),
    "itl_mean": (
        "ITL mean, ms",
        1e3,
        lambda lives: float(np.sum(lives.decode_s) / np.sum(lives.output_tokens - 1)),
    ),
    "output_tokens_per_s": (
        "output tokens/s",
        1.0,
        lambda lives: float(np.sum(lives.output_tokens) / (np.max(lives.last_token_at) - lives.due_at[0])),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity")
    parser.add_argument("--target", choices=["reference", "embedded", "vllm"], default="reference")
    parser.add_argument("--json", action="store_true", help="print the result as JSON in the last line")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the calibrated cost model")
    parser.add_argument("--points", metavar="0,2-4", help="vllm: only these settings, by number")
    parser.add_argument("--quick", action="store_true", help="embedded: fewer and shorter runs")
    parser.add_argument(
        "--record", type=Path, metavar="PATH", help="where parts join: a file.jsonl; vllm: a folder"
    )
    parser.add_argument("--seconds", type=float, help="embedded: begin nothing new after so many")
    arguments = parser.parse_args()
    if arguments.target == "embedded":
        length = embedded.LENGTHS["quick" if arguments.quick else "full"]
        result = embedded.run(length, arguments.record, arguments.seconds)
    elif arguments.target == "vllm":
        result = vllm.run(Record(arguments.record), vllm.numbers(arguments.points))
    else:
        result = against_the_reference(arguments.save)
    if arguments.json:
        print(json.dumps(result))
    return 0


def against_the_reference(keep: Path | None) -> dict[str, object]:
    """Calibrate, compare, and keep the cost model where it is wanted."""
    reference = load()
    found = calibrate(
        reference.observed.part(FIRST),
        lambda multipliers: predict(reference, roofline(reference, multipliers)).part(FIRST),
    )
    result = judge(reference, found)
    if keep:
        save(_calibrated(reference, found), keep)
    return result


def judge(reference: Reference, found: Calibration) -> dict[str, object]:
    """Print the tables and give the result."""
    guessed = predict(reference, roofline(reference, Multipliers()))
    predicted = predict(reference, roofline(reference, found.multipliers))
    print(f"calibrated on the first {CALIBRATED_ON} requests, in {found.simulations} simulations:")
    print(f"  times {as_text(found.multipliers)}")
    residual = found.residual
    print(f"  their TTFT and TPOT: off by {residual.median:.1%} at the median, {residual.p95:.1%} at P95")
    before = _table("the other 200, nothing calibrated", reference.observed.part(REST), guessed.part(REST))
    after = _table("the other 200, calibrated", reference.observed.part(REST), predicted.part(REST))
    median_ttft = abs(_errors_pct(reference.observed, predicted)["ttft_p50"])
    print("\nOne run is stored, so how much two runs of the server differ is not known.")
    print(f"TTFT P50 of all 300: off by {median_ttft:.1f} %; LLMServingSim by {AUTHORS_ERROR_PCT} %")
    sizes = [abs(error) for error in after.values()]
    return {
        "median_error_pct": round(float(np.median(sizes)), 2),
        "worst_error_pct": round(max(sizes), 2),
        "errors_pct": {name: round(error, 2) for name, error in after.items()},
        "uncalibrated_median_error_pct": round(
            float(np.median([abs(error) for error in before.values()])), 2
        ),
        "all_requests_ttft_p50_error_pct": round(median_ttft, 2),
        "authors_ttft_p50_error_pct": AUTHORS_ERROR_PCT,
        "spread_pct": None,  # one run is stored, so how much runs differ is not known
    }


def _errors_pct(observed: Lives, predicted: Lives) -> dict[str, float]:
    return {
        name: 100.0 * (value(predicted) / value(observed) - 1.0) for name, (_, _, value) in METRICS.items()
    }


def _table(title: str, observed: Lives, predicted: Lives) -> dict[str, float]:
    errors = _errors_pct(observed, predicted)
    print(f"\n{title:<36}{'observed':>10}{'predicted':>11}{'error':>9}")
    for name, (label, unit, value) in METRICS.items():
        seen, said = value(observed) * unit, value(predicted) * unit
        print(f"  {label:<34}{seen:>10.2f}{said:>11.2f}{errors[name]:>+8.1f}%")
    return errors


def _calibrated(reference: Reference, found: Calibration) -> Roofline:
    guessed = roofline(reference, found.multipliers)
    return Roofline(
        guessed.deployment,
        found.multipliers,
        found.residual,
        {
            "from": f"the first {CALIBRATED_ON} requests of bench/fidelity/reference_run",
            "by": "python -m bench.fidelity --target reference",
            "vllm": "0.19.0",
        },
    )


if __name__ == "__main__":
    sys.exit(main())

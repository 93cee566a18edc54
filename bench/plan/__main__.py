"""`python -m bench.plan`: how near our plans come to what vLLM logged when it started.

    python -m bench.plan --json                  logs of HEADRACE_SHARED and of starts.json
    python -m bench.plan --live                  and of vLLM on this CPU (`make vllm`), some 3 minutes
    python -m bench.plan --vllm .vllm            and vLLM's own functions, on layers of every kind
    python -m bench.plan --at-once               instead: requests at once, against the twin, a minute

Exit code 1 where a figure that follows from the available memory, or from another line of the log, is off by
more than 2 %. Predictions of the whole are shown apart: nothing of the log is in them.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from bench.plan.at_once import AtOnce, comparisons
from bench.plan.compare import Row, compare
from bench.plan.live import start_of_metrics, started
from bench.plan.peer import disagreements, drawn_questions, questions_of_catalogue
from bench.plan.starts import Start, read_cases, read_more, read_server_log

CLOSE = 0.02
CLOSE_AT_ONCE = 0.06
_DRAWN = 400
_SAMPLES_LENGTH = 4096
"""`max_model_len` of the server whose page of metrics is among the samples: its log says so."""


def main() -> int:
    options = parse_options()
    if options.at_once:
        return compared_at_once(options)
    rows, silent = compared(list(starts_of(options)))
    differing: list[str] | None = None
    if options.vllm is not None:
        asked = [*questions_of_catalogue(), *drawn_questions(_DRAWN)]
        differing = disagreements(options.vllm, asked)
        print(f"vLLM's own functions: {len(asked) - len(differing)} of {len(asked)} the same")
        print("".join(f"  {line}\n" for line in differing), end="")
    print_rows(rows, silent)
    if options.as_json:
        print(json.dumps(summary(rows, silent) | {"differing": differing}))
    return 1 if differing or any(far(row) for row in rows) else 0


def compared_at_once(options: argparse.Namespace) -> int:
    print(
        f"{'workload':<22}{'requests':>9}{'blocks':>8}{'plan':>8}{'twin':>8}{'error':>8}{'safe':>8}{'full':>7}"
    )
    rows: list[AtOnce] = []
    for row in comparisons(options.shared):
        figures = f"{row.planned.typical:>8.1f}{row.twin:>8.1f}{row.error:>+8.1%}{row.planned.safe:>8.1f}"
        print(f"{row.workload:<22}{row.requests:>9,}{row.blocks:>8,}{figures}{row.waits_for_blocks:>7.1%}")
        rows.append(row)
    if options.as_json:
        print(json.dumps([asdict(row) | {"error": round(row.error, 5)} for row in rows]))
    return 1 if any(abs(row.error) > CLOSE_AT_ONCE for row in rows) else 0


def starts_of(options: argparse.Namespace) -> Iterator[Start]:
    shared: Path | None = options.shared
    if shared is not None:
        yield from read_cases(shared / "cases")
        yield read_server_log(shared / "vllm_samples" / "vllm_server.log")
        page = shared / "vllm_samples" / "metrics_0.32.txt"
        yield start_of_metrics(page.name, page.read_text(encoding="utf-8"), _SAMPLES_LENGTH)
    yield from read_more()
    if options.live:
        yield from started(options.vllm or Path(".vllm"))


def compared(starts: Sequence[Start]) -> tuple[list[Row], dict[str, str]]:
    """Rows of all, and why others have none."""
    rows, silent = list[Row](), dict[str, str]()
    for start in starts:
        found, why = compare(start)
        rows += found
        if not found:
            silent[start.name] = why
    return rows, silent


def far(row: Row) -> bool:
    return row.basis != "whole" and abs(row.error) > CLOSE


def print_rows(rows: Sequence[Row], silent: dict[str, str]) -> None:
    for title, chosen in (
        ("From the available memory, or another line of the log", [r for r in rows if r.basis != "whole"]),
        ("Predicted whole, from card, model and flags", [r for r in rows if r.basis == "whole"]),
    ):
        print(f"\n{title}")
        for row in chosen:
            figures = f"{row.logged:>12,.2f} {row.ours:>12,.2f} {row.error:+8.2%}"
            print(f"  {row.start[:38]:<38} {row.figure:<16} {row.basis:<9} {figures}")
        if chosen:
            errors = [abs(row.error) for row in chosen]
            print(f"  {len(chosen)} figures: median {median(errors):.2%}, most {max(errors):.2%}")
    print("\nNot compared")
    for name, why in silent.items():
        print(f"  {name}: {why}")


def summary(rows: Sequence[Row], silent: dict[str, str]) -> dict[str, object]:
    reproduced = [abs(row.error) for row in rows if row.basis != "whole"]
    whole = [abs(row.error) for row in rows if row.basis == "whole" and row.figure == "available_gib"]
    return {
        "figures": len(reproduced),
        "within_2_percent": sum(error <= CLOSE for error in reproduced),
        "worst_error": max(reproduced, default=None),
        "whole_predictions": len(whole),
        "whole_median_error": median(whole) if whole else None,
        "whole_worst_error": max(whole, default=None),
        "rows": [asdict(row) | {"error": round(row.error, 5)} for row in rows],
        "not_compared": silent,
    }


def parse_options() -> argparse.Namespace:
    said = os.environ.get("HEADRACE_SHARED")
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description="Plans against logged starts.")
    parser.add_argument(
        "--shared",
        type=Path,
        default=Path(said) if said else None,
        metavar="DIR",
        help="holds cases/ and vllm_samples/  [default: HEADRACE_SHARED]",
    )
    parser.add_argument("--live", action="store_true", help="start vLLM here, three times")
    parser.add_argument(
        "--vllm", type=Path, metavar="DIR", help="ask vLLM's own functions, of this environment"
    )
    parser.add_argument("--at-once", action="store_true", help="how many requests of workloads run at once")
    parser.add_argument("--json", action="store_true", dest="as_json", help="the last line is for a program")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

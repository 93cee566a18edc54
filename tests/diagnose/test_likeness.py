"""What incidents like this one had: a suspicion where no rule is sure, and never where one is."""

import io
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench.likeness.fit import fitted, written
from bench.likeness.incidents import Origin, solved
from headrace.diagnose import likeness
from headrace.diagnose.causes import causes
from headrace.diagnose.doctor import by_rules, diagnose
from headrace.diagnose.finding import Label, Severity
from headrace.diagnose.judgement import CERTAIN
from headrace.diagnose.likeness import likely, parsed, weighed
from headrace.diagnose.readers.metrics import read_page
from headrace.diagnose.readers.report import read_report
from headrace.diagnose.traits import traits
from headrace.report.diagnosis import print_diagnosis
from tests.diagnose.samples import incident

TABLE = Path(likeness.__file__).with_name("data") / "likeness.tsv"
KNOWN = sorted(line.partition("\t")[0] for line in TABLE.read_text("utf-8").splitlines()[2:])
COLD = {
    "version": "0.9.2",
    "workload": {
        "symptom": "after an update the first requests take 40 seconds, later all is fine; torch.compile?",
    },
    "metrics": {"client:ttft_p50_ms": 180},
}


def test_a_suspicion_says_that_it_is_one_and_how_to_confirm_it() -> None:
    found = diagnose(incident(**COLD)).findings[0]

    assert (found.label, found.severity, found.rule) == (Label.COLD_START, Severity.NOTE, "suspicion")
    assert found.confidence <= 0.5
    assert found.advice.change.startswith("confirm first: ")
    assert causes()[Label.COLD_START].confirm in found.advice.change
    assert found.facts[0].text.startswith("what speaks for it: ")


def test_a_rule_that_is_certain_is_not_overruled() -> None:
    line = "error: unrecognized arguments: --swap-space"
    told = incident(**COLD, log=[f"api_server.py: {line}"])
    by_itself = by_rules(told)

    assert by_itself[0].confidence >= CERTAIN
    assert diagnose(told).findings[0] == by_itself[0]


def test_a_page_of_metrics_is_like_no_incident() -> None:
    """On live servers every page would be like some incident, and the healthy one was told of it."""
    page = read_page(["vllm:num_requests_running 3", "vllm:num_requests_waiting 0"], "m")

    assert {f.rule for f in diagnose(page).findings} <= {""}


def test_likeness_names_no_cause_of_a_server_that_looks_well() -> None:
    well = incident(metrics={"vllm:num_requests_running": [30, 31], "vllm:num_requests_waiting": [0, 0]})

    assert diagnose(well).findings == ()


@given(st.sets(st.sampled_from(KNOWN), max_size=60), st.sets(st.text(max_size=9), max_size=5))
def test_shares_are_of_a_whole_whatever_is_told(known: set[str], unknown: set[str]) -> None:
    found = likely(known | (unknown - set(KNOWN)))

    assert math.isclose(sum(each.share for each in found), 1.0)
    assert {each.label for each in found} == set(Label)
    assert [each.share for each in found] == sorted((each.share for each in found), reverse=True)
    assert found == likely(known)
    assert set(found[0].reasons) <= known


def test_more_of_what_speaks_for_a_cause_makes_it_likelier() -> None:
    table = ["labels\tcompute\tbad_flags", "bias\t0\t0", "a\t100\t200\t", "b\t100\t100\t", "c\t100\t\t50"]
    weights = parsed(table)

    one, two = weighed({"c"}, weights), weighed({"a", "c"}, weights)

    assert one[0].label is Label.BAD_FLAGS
    assert (two[0].label, two[0].reasons) == (Label.COMPUTE, ("a",))
    # Both traits are as rare, so each counts for 1/sqrt(2) of its weight: 2.0 against 0.5.
    assert math.isclose(two[0].share, 1 / (1 + math.exp(-1.5 / math.sqrt(2))))


def test_no_number_and_no_name_of_a_file_is_a_trait() -> None:
    first = traits(incident(metrics={"client:ttft_ms": 20}, workload={"symptom": "3 users wait 500 ms"}))
    other = traits(incident(metrics={"client:ttft_ms": 97}, workload={"symptom": "8 users wait 912 ms"}))

    assert first == other


def test_every_cause_says_what_would_confirm_it() -> None:
    assert set(causes()) == set(Label) - {Label.UNDETERMINED}


def test_a_suspicion_names_what_the_engine_has() -> None:
    """A user of SGLang was told of --long-prefill-token-threshold, and one of llama.cpp of vllm: metrics."""
    of_vllm = re.compile(
        r"--|vllm:|kv_cache_usage_perc|_total|request_prompt_tokens|Available KV cache memory"
    )
    for label, cause in causes("sglang").items():
        assert not of_vllm.search(f"{cause.confirm} {cause.change}"), label
        assert bool(cause.confirm and cause.change)
    assert "--max-num-seqs" in causes("vllm")[Label.QUEUEING].change
    slow = {"symptom": f"{COLD['workload']} users wait long for a first token, and for it no one knows why"}
    found = diagnose(incident(engine="sglang", workload=slow)).findings[0]
    assert found.rule == "suspicion"
    assert found.advice.verify == causes("sglang")[found.label].confirm


def test_a_suspicion_is_called_one_however_likely() -> None:
    """One with a share of 65 % was shown as "some evidence", in the same breath as "no rule proves it"."""
    suspected = diagnose(incident(**COLD))
    assert (suspected.findings[0].rule, suspected.findings[0].confidence) == ("suspicion", 0.5)
    console = Console(file=io.StringIO(), width=200)
    print_diagnosis(suspected, console)
    assert isinstance(console.file, io.StringIO)
    assert "cold_start_compile  (suspicion)" in console.file.getvalue()


@pytest.mark.slow
def test_the_table_is_what_a_fit_to_the_incidents_gives() -> None:
    """A rule or a reader that changes without a new fit leaves weights for traits that are no more."""
    incidents = solved()
    stored, now = (
        parsed(text.splitlines()) for text in (TABLE.read_text("utf-8"), written(fitted(incidents)))
    )
    fresh = [each for each in incidents if each.origin in (Origin.FRESH, Origin.READ)]
    alike = sum(weighed(e.traits, stored)[0].label == weighed(e.traits, now)[0].label for e in fresh)

    assert len(stored.places.keys() & now.places.keys()) > 0.9 * len(now.places)
    assert alike >= 0.97 * len(fresh)


def test_a_log_with_sentences_of_libraries_is_no_report() -> None:
    """vLLM's log begins with one of Triton's, and a live server was told of a wrong flag for it."""
    says = "Triton is installed, but doesn't include CPU backend. Disabling Triton."
    line = "(APIServer pid=1) INFO 11-29 18:00:{:02} [loggers.py] Engine 000: Avg prompt throughput: 9.0 t/s"
    log = "\n".join([says, *(line.format(second) for second in range(9))])

    assert not read_report(log, "server.log").is_report
    assert read_report(
        f"Why is vLLM slow with long prompts since today?\n{line.format(1)}", "issue.md"
    ).is_report

"""Lines that name their own cause: each is found, and none is taken for more than it says."""

import pytest

from headrace.diagnose.causes import causes
from headrace.diagnose.finding import Label, Severity
from headrace.diagnose.messages import SAYS_ENOUGH, messages
from headrace.diagnose.readers.log import patterns
from tests.diagnose.samples import diagnose, incident

LINES = {
    "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).": (
        Label.BAD_FLAGS
    ),
    "RuntimeError: CUDA error: an illegal memory access was encountered": Label.STALL,
    "[E ProcessGroupNCCL.cpp:563] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=": (
        Label.INTERCONNECT
    ),
    "[E ProcessGroupNCCL.cpp:563] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5730, Op": (
        Label.STALL
    ),
    "RuntimeError: unable to open shared memory object </torch_1_2_0> in read-write mode": Label.HOST_MEMORY,
    "cublasCreate(handle): CUBLAS_STATUS_ALLOC_FAILED": Label.OOM_PEAK,
    "The request queue is full.": Label.QUEUEING,
    "load_tensors: offloaded 0/33 layers to GPU": Label.BAD_FLAGS,
    "Compiling a graph for dynamic shape takes 214.30 s": Label.COLD_START,
}


@pytest.mark.parametrize(("line", "label"), LINES.items())
def test_a_line_that_names_its_cause_is_enough(line: str, label: Label) -> None:
    assert diagnose(incident(log=[line])).findings[0].label is label


def test_every_message_has_a_kind_of_its_own_and_says_what_helps() -> None:
    kinds = [pattern.kind for pattern in patterns()]

    for message in messages().values():
        assert kinds.count(message.kind) == 1
        assert message.label in causes()


def test_a_line_that_is_printed_without_harm_too_is_no_finding_by_itself() -> None:
    hint = next(m for m in messages().values() if m.kind == "custom_allreduce_off")
    found = diagnose(incident(log=[hint.any[0]])).findings

    assert hint.weight < SAYS_ENOUGH
    assert all(finding.severity is Severity.NOTE for finding in found)


def test_memory_that_failed_outranks_whatever_else_was_printed() -> None:
    log = ["Using a slow tokenizer. This might cause a significant slowdown", "CUDA out of memory"]

    assert Label.CPU not in {finding.label for finding in diagnose(incident(log=log)).findings}


@pytest.mark.parametrize(
    ("line", "suspected"),
    [
        (
            "settings that are only active during inductor compilation will be ignored.",
            False,
        ),
        ("WARNING [config.py:88] --swap-space is set and will be ignored.", True),
    ],
)
def test_what_every_start_without_compilation_says_is_no_sign_of_a_wrong_flag(
    line: str, suspected: bool
) -> None:
    """It went before what was wrong with a live server, and was all that was said of one short of cores."""
    found = {finding.label for finding in diagnose(incident(log=[line])).findings}
    assert (Label.BAD_FLAGS in found) is suspected

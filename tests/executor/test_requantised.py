"""Whole models in other formats than the built-in one's answer as their files say.

llama.cpp's quantiser writes the files, and `transformers` in float32 says what is right: neither shares a
line with what is tested. Rows of 576 numbers are no whole blocks of 256, so Q4_K and Q6_K are for those
of 1,536, and the others have the format that has the same number of bits.
"""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from headrace.executor.fetch import SMOLLM2, fetch
from headrace.executor.models import locate
from headrace.executor.paged import PagedExecutor, load
from headrace.executor.tokenizer import OpenVinoTokenizer
from tests.executor import requantised
from tests.executor.driving import answer, greedy, work
from tests.executor.test_exact_weights import logprobs_of_prompt

PEER = Path(".vllm/bin/python")
REFERENCE = Path(__file__).with_name("transformers_reference.py")
ANSWER_TOKENS = 24

TEXT = (
    "A headrace is the channel that brings the water to the wheel. Whoever builds one begins at the weir, "
    "where the river is held back, and follows the slope down to the mill: too steep, and the banks wash "
    "away; too flat, and the water stands. In dry summers the miller opened the sluice only at night."
)
BEGINNING = "Once upon a time, in a mill by the river, there lived"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(
        not (PEER.exists() and requantised.LIBRARIES), reason="needs `make vllm` and `make llama`"
    ),
]


@pytest.mark.parametrize(
    ("wide", "narrow"), [("F16", "F16"), ("Q8_0", "Q8_0"), ("Q6_K", "Q8_0"), ("Q4_K", "Q4_0")]
)
def test_a_model_in_another_format_answers_as_transformers_does(
    tokenizer: OpenVinoTokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wide: str,
    narrow: str,
) -> None:
    path = tmp_path / "model.gguf"
    requantised.write(path, fetch(SMOLLM2), lambda matrix: narrow if matrix.columns % 256 else wide)
    text, prompt = tokenizer.encode(TEXT), tokenizer.encode(BEGINNING)
    expected = of_transformers(path, text, prompt)

    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    executor = PagedExecutor(load(locate(str(path))), num_blocks=8)
    np.testing.assert_allclose(logprobs_of_prompt(executor, text), expected["logprobs"], atol=2e-3)
    begun = work("a", prompt, greedy(ANSWER_TOKENS), range(1, 4))
    assert len(expected["answer"]) == ANSWER_TOKENS, "it has not ended before"
    assert answer(executor, begun, ANSWER_TOKENS) == expected["answer"]


def of_transformers(path: Path, text: list[int], prompt: list[int]) -> dict[str, list[float]]:
    asked = json.dumps({"path": str(path), "text": text, "prompt": prompt})
    done = subprocess.run(
        [PEER, REFERENCE], input=asked, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

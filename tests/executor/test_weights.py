"""The other forms of the weights say what the packed ones say, and what is not packed stays as it is."""

import subprocess
import sys
from collections.abc import Callable
from typing import cast

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13

from headrace.executor.weights import as_signed_bytes, expand

ROWS, GROUPS, WIDTH = 6, 2, 32
Floats = NDArray[np.float32]
make_model = cast("Callable[[list[ov.Node], list[ov.Node]], ov.Model]", ov.Model)
"""Its stubs refuse to be called."""


def packed(kind: str, seed: int, rows: int = ROWS, zeros_kind: str = "") -> ov.Node:
    """A matrix as OpenVINO GenAI writes it: (integers - zero points) * scales, in groups."""
    chance = np.random.default_rng(seed)
    most = 16 if kind == "u4" else 256
    integers = chance.integers(0, most, (rows, GROUPS, WIDTH), np.uint8)
    zeros = np.full((rows, GROUPS, 1), 128, np.uint8)
    if kind == "u4":
        zeros = chance.integers(0, most, (rows, GROUPS, 1), np.uint8)
    scales = opset13.constant(chance.uniform(0.5, 2.0, (rows, GROUPS, 1)).astype(np.float16))
    zero = _constant(zeros, kind)
    if zeros_kind:
        halves = opset13.constant(zeros.astype(np.float16) + np.float16(0.5))
        zero = opset13.convert(halves, "f16") if zeros_kind == "converted" else halves
    apart = opset13.subtract(_constant(integers, kind), zero)
    flat = opset13.reshape(
        opset13.multiply(apart, scales), np.array([rows, GROUPS * WIDTH], np.int64), special_zero=False
    )
    return opset13.convert(flat, "f32")


def _constant(values: NDArray[np.uint8], kind: str) -> ov.Node:
    if kind == "u8":
        return opset13.convert(opset13.constant(values), "f16")
    flat = values.ravel()
    tensor = ov.Tensor(ov.Type.u4, ov.Shape(list(values.shape)))
    tensor.data.ravel()[:] = flat[0::2] | (flat[1::2] << 4)
    return opset13.convert(opset13.constant(tensor), "f16")


def model(*weights: ov.Node) -> ov.Model:
    """All multiply the same rows."""
    rows = opset13.parameter([-1, GROUPS * WIDTH], ov.Type.f32)
    products = [opset13.matmul(rows, weight, transpose_a=False, transpose_b=True) for weight in weights]
    return make_model([opset13.result(product) for product in products], [rows])


def outputs(made: ov.Model) -> list[Floats]:
    rows = np.random.default_rng(7).standard_normal((3, GROUPS * WIDTH)).astype(np.float32)
    hints = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    return [*ov.Core().compile_model(made, "CPU", hints)([rows]).values()]


def types(made: ov.Model) -> set[str]:
    return {
        node.get_element_type().get_type_name()
        for node in made.get_ordered_ops()
        if node.get_type_name() == "Constant"
    }


@pytest.mark.parametrize("kind", ["u4", "u8"])
@pytest.mark.parametrize("change", [as_signed_bytes, expand])
def test_another_form_of_the_weights_multiplies_as_the_packed_one(
    kind: str, change: Callable[[ov.Model], None]
) -> None:
    made = model(packed(kind, 1), packed(kind, 2, rows=4))
    as_packed = outputs(made)
    change(made)
    assert kind not in types(made), "nothing was changed"
    for got, expected in zip(outputs(made), as_packed, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("zeros_kind", ["constant", "converted"])
def test_zero_points_between_two_integers_survive(zeros_kind: str) -> None:
    """As signed bytes they would be cut off to whole ones; float32 can hold them."""
    made = model(packed("u4", 1, zeros_kind=zeros_kind))
    as_packed = outputs(made)
    as_signed_bytes(made)
    assert "i8" not in types(made)
    np.testing.assert_array_equal(outputs(made)[0], as_packed[0])
    expand(made)
    np.testing.assert_allclose(outputs(made)[0], as_packed[0], rtol=1e-5, atol=1e-3)


def test_projections_of_the_same_rows_become_one() -> None:
    made = model(packed("u4", 1), packed("u4", 2), packed("u4", 3))
    expand(made)
    assert sum(node.get_type_name() == "MatMul" for node in made.get_ordered_ops()) == 1


def test_weights_that_are_not_packed_are_left_alone() -> None:
    """A product of two activations has no weights; a float matrix has nothing to unpack."""
    rows = opset13.parameter([-1, 4], ov.Type.f32)
    by_constant = opset13.matmul(
        rows, opset13.constant(np.ones((3, 4), np.float32)), transpose_a=False, transpose_b=True
    )
    by_rows = opset13.matmul(rows, rows, transpose_a=False, transpose_b=True)
    made = make_model([opset13.result(by_constant), opset13.result(by_rows)], [rows])
    before = [node.get_friendly_name() for node in made.get_ordered_ops()]
    as_signed_bytes(made)
    expand(made)
    assert [node.get_friendly_name() for node in made.get_ordered_ops()] == before


_TWO_AT_ONCE = """
import sys, threading
import openvino as ov
from headrace.executor.models import locate
from headrace.executor.weights import prepare_for_threads
model = ov.Core().read_model(locate("smollm2").folder / "openvino_model.xml")
constants = [op for op in model.get_ops() if op.get_type_name() == "Constant"][:2]
prepare_for_threads()
both = threading.Barrier(2)
sys.setswitchinterval(1e-6)
def read(constant):
    both.wait()
    constant.data
threads = [threading.Thread(target=read, args=(each,)) for each in constants]
for each in threads: each.start()
for each in threads: each.join()
"""


@pytest.mark.slow
@pytest.mark.model
def test_two_threads_may_be_the_first_to_read_weights() -> None:
    """Unprepared, a third of such processes wait for ever, and so did a start now and then."""
    for _ in range(10):
        subprocess.run([sys.executable, "-c", _TWO_AT_ONCE], timeout=60, check=True)

"""Compressed weights in two other forms, each the fastest for some steps; their values stay the same.

    IR with 4- or 8-bit weights --as_signed_bytes--> 8 bits without zero points   for steps of few tokens
                                --expand-----------> float32, projections joined  for steps of many

OpenVINO unpacks compressed weights anew in every step. For a token or two that is most of the work, and
bytes that only want scaling are unpacked faster than halves of bytes that also want a zero point taken off.
From some tokens on it is work in vain: there float32 is faster, at up to eight times the memory. What
is not compressed, or not in the way that OpenVINO GenAI writes GGUF files, is left as it is.
"""

from collections.abc import Iterable
from typing import cast

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

Array = NDArray[np.generic]

_UNPACKING = ("Convert", "Subtract", "Multiply", "Reshape")


def prepare_for_threads() -> None:
    """Call once before threads change models at the same time.

    OpenVINO makes its table of numpy's types when a constant is first read. Of two threads that are first
    at once, one waits for the table with Python's lock in its hand, the other makes it and waits for the
    lock: for ever.
    """
    _unpacked(opset13.constant(np.zeros(1, np.float32)))


def as_signed_bytes(model: ov.Model) -> None:
    """Integers less their zero points fit into 8 signed bits; the scales stay."""
    for matmul in _projections(model):
        if (found := _scaled_integers(matmul.input_value(1))) is not None:
            integers, scales = found
            rows, groups, width = integers.shape
            scaled = opset13.multiply(opset13.convert(opset13.constant(integers), "f16"), scales)
            flat = opset13.reshape(scaled, np.array([rows, groups * width], np.int64), special_zero=False)
            matmul.input(1).replace_source_output(opset13.convert(flat, "f32").output(0))


def expand(model: ov.Model) -> None:
    """All weights to float32; those that multiply the same rows become one matrix."""
    together: dict[tuple[str, int], list[ov.Node]] = {}
    for matmul in _projections(model):
        rows = matmul.input_value(0)
        together.setdefault((rows.get_node().get_friendly_name(), rows.get_index()), []).append(matmul)
    for matmuls in together.values():
        weights = [_value(matmul.input_value(1)).astype(np.float32) for matmul in matmuls]
        if len(matmuls) == 1:
            matmuls[0].input(1).replace_source_output(_constant(weights).output(0))
        else:
            _join(matmuls, weights)
    model.validate_nodes_and_infer_types()


def _join(matmuls: list[ov.Node], weights: list[NDArray[np.float32]]) -> None:
    joined = opset13.matmul(
        matmuls[0].input_value(0), _constant(weights), transpose_a=False, transpose_b=True
    )
    lengths = np.array([weight.shape[0] for weight in weights], np.int64)
    parts = opset13.variadic_split(joined, opset13.constant(np.int64(-1)), opset13.constant(lengths))
    for place, matmul in enumerate(matmuls):
        for reader in matmul.output(0).get_target_inputs():
            reader.replace_source_output(parts.output(place))


def _constant(weights: list[NDArray[np.float32]]) -> ov.Node:
    return opset13.constant(np.concatenate(weights))


def _projections(model: ov.Model) -> Iterable[ov.Node]:
    """Multiplications by a compressed matrix, a row for each output."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul":
            weights = node.input_value(1)
            transposed = node.get_attributes()
            as_usual = transposed["transpose_b"] and not transposed["transpose_a"]
            if as_usual and weights.get_node().get_type_name() != "Constant" and _is_constant(weights):
                yield node


def _is_constant(output: ov.Output) -> bool:
    node = output.get_node()
    kind = node.get_type_name()
    return kind == "Constant" or (kind in _UNPACKING and all(map(_is_constant, node.input_values())))


def _scaled_integers(weights: ov.Output) -> tuple[NDArray[np.int8], ov.Output] | None:
    """Of Convert(Reshape((integers - zero points) * scales)), a matrix of (rows, groups, width)."""
    node = weights.get_node()
    for kind in ("Convert", "Reshape", "Multiply"):
        if node.get_type_name() != kind:
            return None
        multiply, node = node, node.input_value(0).get_node()
    sides = [each.get_node() for each in node.input_values()]
    if node.get_type_name() != "Subtract" or any(side.get_type_name() != "Convert" for side in sides):
        return None
    integers, zeros = (_value(side.input_value(0)) for side in sides)
    if integers.dtype.kind not in "iu" or zeros.dtype.kind not in "iu":
        return None  # zero points between two integers stay where they are
    signed = integers.astype(np.int16) - zeros.astype(np.int16)
    if signed.ndim != 3 or signed.min() < -128 or signed.max() > 127:
        return None
    return signed.astype(np.int8), multiply.input_value(1)


def _value(output: ov.Output) -> Array:
    """What a constant expression comes to, in float32 where it is no integer: as the plugin unpacks it."""
    node = output.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        return _unpacked(node)
    first, *rest = (_value(each) for each in node.input_values())
    if kind == "Convert":
        return first.astype(np.float32) if node.get_element_type().is_real() else first
    if kind == "Reshape":
        return first.reshape(rest[0].tolist())
    left, right = first.astype(np.float32), rest[0].astype(np.float32)
    return left - right if kind == "Subtract" else left * right


def _unpacked(constant: ov.Node) -> Array:
    """OpenVINO keeps two 4-bit integers in a byte, the earlier one in the lower half."""
    data = cast("Array", constant.data)  # the stubs take this property for a method
    if constant.get_element_type() != ov.Type.u4:
        return data
    packed = np.frombuffer(data.tobytes(), np.uint8)
    halves = np.stack((packed & 15, packed >> 4), axis=-1).ravel()
    shape = tuple(constant.get_output_shape(0))
    return halves[: int(np.prod(shape))].reshape(shape)

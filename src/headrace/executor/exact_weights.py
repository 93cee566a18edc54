"""Gives the weights of a converted GGUF file the values that the file says.

    file    Q4_1  w = d * q + m             IR, as OpenVINO GenAI writes it   w = (q - zero) * scale
            Q4_K  w = (D * s) * q - M * o   zero: a whole number of 4 bits, so m / d is rounded
            Q6_K  w = (D * s) * (q - 32)    scale: float16, so D * s is rounded
                            |
                            +--restore--> the same integers, zero and scale in float32

A rounded zero point moves all weights of a group by up to half a step: of Q4_1 by 8 % of a weight's size.
OpenVINO's CPU plugin unpacks in float32 anyway and takes zero points that are no integers into the same
kernels. What that costs, and what it gives, is in docs/log.md. F16, Q4_0 and Q8_0 are exact as they come.

Of F16 files, vectors (norms, biases) come rounded to float16, and so do the frequencies by which positions
rotate queries and keys: a thousand tokens on, some angles are off by a third of a radian. Both are made
float32 again; what is not recognised among them stays as it came.

The IR does not say which of the file's matrices is which. They are recognised by their scales, and so is
the order into which the reader brings the rows of queries and keys. A quantised matrix that cannot be
recognised is an error: the model would answer worse, and nobody would know.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from headrace.executor.gguf import GgufHeader, GgufMatrix

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Bytes = NDArray[np.uint8]

_F32, _Q4_0, _Q4_1, _Q8_0, _Q4_K, _Q6_K = 0, 2, 3, 8, 12, 14
_BLOCK = {_Q4_0: (32, 18), _Q4_1: (32, 20), _Q8_0: (32, 34), _Q4_K: (256, 144), _Q6_K: (256, 210)}
"""Numbers in a block, and its bytes."""
_GROUPS = {_Q4_K: 8, _Q6_K: 16}
"""How many groups of a block have a scale of their own, where it is not one."""
_ROUNDED = (_Q4_1, _Q4_K, _Q6_K)

_FAR = np.float32(2.0**40)
"""A zero point beside which no integer counts."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """A matrix of the IR: integers, and for each group of them a zero point and a scale."""

    integers: ov.Output
    zeros: ov.Output
    scales: Halves
    flat: ov.Node
    """Its groups joined to rows; what reads it makes float32 of it."""


def restore(model: ov.Model, gguf: Path, header: GgufHeader) -> None:
    """Raises `ValueError` for a matrix that is not in the file."""
    known = _Known(gguf, header)
    for packed in list(_packed(model)):
        matrix, order = known.find(packed.scales)
        if matrix.kind in _ROUNDED:
            scales, offsets = _read(known.blocks(matrix), matrix.kind)
            if offsets is None:
                _replace(packed, scales[order], None)
            else:
                _replace(packed, *_with_zeros(scales[order], offsets[order]))
    _restore_vectors(model, known)
    model.validate_nodes_and_infer_types()


def _restore_vectors(model: ov.Model, known: "_Known") -> None:
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() == ov.Type.f16:
            halves = cast("Halves", node.data)
            if (vector := known.vector(halves)) is not None:
                exact = opset13.constant(vector.reshape(halves.shape))
                for reader in node.output(0).get_target_inputs():  # its conversion to float32
                    for place in reader.get_node().output(0).get_target_inputs():
                        place.replace_source_output(exact.output(0))


class _Known:
    """The quantised matrices of a file, to be found by their scales, and its vectors."""

    def __init__(self, gguf: Path, header: GgufHeader) -> None:
        self._bytes: Bytes = np.memmap(gguf, np.uint8, mode="r")
        self._vectors: dict[int, list[Floats]] = defaultdict(list)
        self._by_shape: dict[tuple[int, ...], list[GgufMatrix]] = defaultdict(list)
        for matrix in header.matrices:
            if matrix.kind in _BLOCK:
                groups = matrix.columns // _BLOCK[matrix.kind][0] * _GROUPS.get(matrix.kind, 1)
                self._by_shape[matrix.rows, groups].append(matrix)
            elif matrix.kind == _F32 and matrix.rows == 1:
                end = matrix.starts_at + 4 * matrix.columns
                self._vectors[matrix.columns].append(self._bytes[matrix.starts_at : end].view(np.float32))
        architecture = header.text("general.architecture")
        base = header.metadata.get(f"{architecture}.rope.freq_base", 10000.0)
        self._rope_base = np.float64(base if isinstance(base, float) and base > 1 else 10000.0)
        heads = header.count(f"{architecture}.attention.head_count") or 1
        self._heads = {
            "attn_q": heads,
            "attn_k": header.count(f"{architecture}.attention.head_count_kv") or heads,
        }

    def find(self, scales: Halves) -> tuple[GgufMatrix, NDArray[np.intp]]:
        """The matrix and which of its rows come first, second, ..."""
        for matrix in self._by_shape[scales.shape]:
            blocks = self.blocks(matrix)
            if not _same(_read(blocks[:1], matrix.kind)[0], scales[:1]):
                continue  # no order moves the first row
            theirs = _read(blocks, matrix.kind)[0]
            for order in self._orders(matrix):
                if _same(theirs[order], scales):
                    return matrix, order
        raise ValueError(f"the file has no weights of {scales.shape} groups with the scales that were read")

    def vector(self, halves: Halves) -> Floats | None:
        """What was rounded to `halves`; None for what is not of the file."""
        if halves.size != max(halves.shape, default=0):
            return None
        steps = np.arange(halves.size) / halves.size
        frequencies = (self._rope_base**-steps).astype(np.float32)
        candidates = (frequencies, *self._vectors[halves.size])
        return next((each for each in candidates if _same(each, halves.ravel())), None)

    def blocks(self, matrix: GgufMatrix) -> Bytes:
        per_block, size = _BLOCK[matrix.kind]
        shape = matrix.rows, matrix.columns // per_block, size
        end = matrix.starts_at + shape[0] * shape[1] * size
        return self._bytes[matrix.starts_at : end].reshape(shape)

    def _orders(self, matrix: GgufMatrix) -> Iterator[NDArray[np.intp]]:
        """As in the file, or each head's even rows before its odd ones: two ways to write rotating pairs."""
        order = np.arange(matrix.rows)
        yield order
        heads = self._heads.get(matrix.name.removesuffix(".weight").rpartition(".")[2])
        if heads and matrix.rows % (2 * heads) == 0:
            yield order.reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _same(theirs: Floats, read: Halves) -> bool:
    """Up to the last bit: the reader may round a product otherwise."""
    with np.errstate(over="ignore"):
        bits = theirs.astype(np.float16).view(np.int16).astype(np.int32)
    return bool((np.abs(bits - read.view(np.int16)) <= 1).all())


def _read(blocks: Bytes, kind: int) -> tuple[Floats, Floats | None]:
    """Scales and offsets of (rows, groups); no offsets where a whole number is subtracted instead."""
    if kind == _Q4_K:
        scales, offsets = _of_six_bits(blocks[..., 4:16])
        two = _floats(blocks[..., :4])
        return _by_row(two[..., :1] * scales), _by_row(-two[..., 1:] * offsets)
    if kind == _Q6_K:
        signed = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
        return _by_row(_floats(blocks[..., 208:]) * signed), None
    if kind == _Q4_1:
        two = _floats(blocks[..., :4])
        return two[..., 0], two[..., 1]
    return _floats(blocks[..., :2])[..., 0], None


def _of_six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight offsets from twelve bytes.

    In the lower 6 bits of bytes 0 to 3 the first scales, of 4 to 7 the first offsets. The others have
    4 bits each in bytes 8 to 11, scales in the lower half, and their upper 2 bits are left over from before.
    """
    first, second, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate((first & 63, rest & 15 | first >> 6 << 4), axis=-1)
    offsets = np.concatenate((second & 63, rest >> 4 | second >> 6 << 4), axis=-1)
    return scales.astype(np.uint8), offsets.astype(np.uint8)


def _floats(halves: Bytes) -> Floats:
    return np.ascontiguousarray(halves).view(np.float16).astype(np.float32)


def _by_row(values: Floats) -> Floats:
    return values.reshape(len(values), -1)


def _with_zeros(scales: Floats, offsets: Floats) -> tuple[Floats, Floats]:
    """`q * scale + offset` as `(q - zero) * scale`, also where a scale of 0 leaves only the offset."""
    flat = scales == 0
    zeros = (-offsets / np.where(flat, 1, scales)).astype(np.float32)
    zeros[flat] = -np.sign(offsets[flat]) * _FAR
    return np.where(flat, np.abs(offsets) / _FAR, scales).astype(np.float32), zeros


def _packed(model: ov.Model) -> Iterator[_Packed]:
    """Reshape((integers - zeros) * scales)."""
    for flat in model.get_ordered_ops():
        multiply = _above(flat) if flat.get_type_name() == "Reshape" else None
        subtract = _above(multiply) if multiply and multiply.get_type_name() == "Multiply" else None
        if multiply and subtract and subtract.get_type_name() == "Subtract":
            integers, zeros = (_above(subtract, place) for place in (0, 1))
            scales = _above(multiply, 1)
            kinds = [node.get_type_name() for node in (integers, zeros, scales)]
            if kinds == ["Convert", "Convert", "Constant"]:
                halves = cast("Halves", scales.data)[..., 0]  # the stubs take this property for a method
                yield _Packed(integers.input_value(0), zeros.input_value(0), halves, flat)


def _above(node: ov.Node, place: int = 0) -> ov.Node:
    return node.input_value(place).get_node()


def _replace(packed: _Packed, scales: Floats, zeros: Floats | None) -> None:
    """Compute in float32, with other scales and, where they are given, zero points."""
    subtracted = opset13.convert(packed.zeros, "f32") if zeros is None else _constant(zeros)
    difference = opset13.subtract(opset13.convert(packed.integers, "f32"), subtracted)
    product = opset13.multiply(difference, _constant(scales))
    joined = opset13.reshape(product, packed.flat.input_value(1), special_zero=False)
    for reader in packed.flat.output(0).get_target_inputs():
        for place in reader.get_node().output(0).get_target_inputs():
            place.replace_source_output(joined.output(0))


def _constant(values: Floats) -> ov.Node:
    """As float16 where that is the same."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if np.array_equal(halves, values):
        return opset13.convert(opset13.constant(halves[..., None]), "f32")
    return opset13.constant(values[..., None])

"""The built-in model's file with its weights in other formats, by llama.cpp's own quantiser.

The quantiser is a function of the library that `make llama` installs for the benchmarks.
"""

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.executor.gguf import GgufMatrix, read_header
from tests.executor.tiny_gguf import BLOCK

LIBRARIES = sorted(Path(".llama").glob("lib/python3*/site-packages/xllamacpp/xllamacpp*.so"))

Floats = NDArray[np.float32]
_KINDS = {number: name for name, (number, _, _) in BLOCK.items()}


def write(path: Path, original: Path, kind_of: Callable[[GgufMatrix], str]) -> None:
    """`kind_of` says in which format a matrix is to be; vectors stay as they are."""
    content = original.read_bytes()
    matrices = read_header(original).matrices
    infos, data = b"", bytearray()
    for matrix in matrices:
        kind = "F32" if matrix.rows == 1 else kind_of(matrix)
        sizes = [matrix.columns] if matrix.rows == 1 else [matrix.columns, matrix.rows]
        name = matrix.name.encode()
        infos += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        infos += struct.pack("<IQ", BLOCK[kind][0], len(data))
        data += quantised(_numbers(content, matrix), kind)
        data += bytes(-len(data) % 32)
    # Tensors are described after the metadata; the first description begins with the first one's name.
    first = matrices[0].name.encode()
    metadata = content[: content.index(struct.pack("<Q", len(first)) + first)]
    head = metadata + infos
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(data))


def quantised(numbers: Floats, kind: str) -> bytes:
    if kind in {"F32", "F16"}:
        return numbers.astype(np.float32 if kind == "F32" else np.float16).tobytes()
    number, per_block, block_bytes = BLOCK[kind]
    rows, columns = numbers.shape
    assert columns % per_block == 0, f"rows of {columns} are no whole blocks of {kind}"
    written = ctypes.create_string_buffer(rows * columns // per_block * block_bytes)
    quantise = ctypes.CDLL(str(LIBRARIES[0].resolve())).ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    quantise.argtypes = [ctypes.c_int, *2 * [ctypes.c_void_p], *3 * [ctypes.c_int64], ctypes.c_void_p]
    size = quantise(number, numbers.ctypes.data, written, 0, rows, columns, None)
    assert size == len(written)
    return written.raw


def _numbers(content: bytes, matrix: GgufMatrix) -> Floats:
    kind = _KINDS[matrix.kind]
    _, per_block, block_bytes = BLOCK[kind]
    count = matrix.rows * matrix.columns // per_block
    raw = np.frombuffer(content, np.uint8, count * block_bytes, matrix.starts_at).reshape(count, block_bytes)
    if kind == "F32":
        numbers = raw.view(np.float32)
    elif kind == "F16":
        numbers = raw.view(np.float16).astype(np.float32)
    elif kind == "Q8_0":
        numbers = raw[:, 2:].view(np.int8) * raw[:, :2].copy().view(np.float16).astype(np.float32)
    else:
        assert kind == "Q4_1", f"the built-in model has {kind}"
        scale, offset = raw[:, :4].copy().view(np.float16).astype(np.float32).T[..., None]
        numbers = np.hstack((raw[:, 4:] & 15, raw[:, 4:] >> 4)) * scale + offset
    return np.ascontiguousarray(numbers, np.float32).reshape(matrix.rows, matrix.columns)

"""What the header of a GGUF file says, read with suspicion.

    magic "GGUF" | version | tensors | metadata: key, type, value ... | name, shape, type, offset ... | data

Knows nothing of what the numbers mean to a model. The header is walked once, whatever the file
claims: every count is held against the bytes that are left before anything of that size is read,
so a file that lies costs an error and nothing else. The PyPI package `gguf` would do the reading,
but brings an HTTP client along and trusts its input.

What OpenVINO GenAI's reader takes was found by trying (2026.4; a test tries again): `READABLE_TYPES` and
`READABLE_ARCHITECTURES`. It is said here, because that reader loads the whole file before it finds out.
"""

import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from headrace.core.errors import ModelUnusable

Scalar = str | int | float | bool

_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_MOST_ITEMS = 1 << 24  # of all arrays together; vocabularies have a few hundred thousand
_MOST_KEYS = 1 << 16
_MOST_TENSORS = 1 << 17
_LONGEST_KEPT = 1 << 20  # bytes of a string; chat templates have some ten thousand

_BEGINS_TEXTS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "midm-2.0", "pixtral", "tekken"})
"""Ways to split text whose tokenizers put a token first, for files that do not say: llama.cpp's list."""

_BLOCK = {  # tensor type: (numbers in a block, bytes of a block)
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2),
}  # fmt: skip

READABLE_ARCHITECTURES = ("llama", "qwen2", "qwen3")
READABLE_TYPES = {1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 12: "Q4_K", 14: "Q6_K"}
_OTHER_TYPES = {
    0: "F32", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufMatrix:
    """Where the numbers of a matrix, or of a vector as its only row, are, and as what they are written."""

    name: str
    kind: int
    rows: int
    columns: int
    starts_at: int
    """The byte of the file."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Single values by key (arrays are passed over), how many tensors follow, of which types those with
    several dimensions are, and where matrices and vectors are.
    """

    metadata: dict[str, Scalar]
    tensors: int
    matrix_types: frozenset[int]
    matrices: tuple[GgufMatrix, ...]

    @property
    def unreadable_types(self) -> list[str]:
        """Of the matrices, for people."""
        others = self.matrix_types - READABLE_TYPES.keys()
        return sorted(_OTHER_TYPES.get(each, f"type {each}") for each in others)

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) and value else None

    def count(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def refuse_architecture(name: str, architecture: str) -> None:
    """Raises `ModelUnusable` for what OpenVINO GenAI has no model code for."""
    if architecture not in READABLE_ARCHITECTURES:
        raise ModelUnusable(
            f"{name} is a model of architecture {architecture}; OpenVINO GenAI reads GGUF files of "
            f"{', '.join(READABLE_ARCHITECTURES)}",
            "convert the original with `optimum-cli export openvino` and give that folder",
        )


def first_token_id(header: GgufHeader) -> int | None:
    """The token that the model wants before every text. None where it wants none.

    `add_bos_token` says so; older files lack it, and then it depends on the kind of tokenizer.
    """
    said = header.metadata.get("tokenizer.ggml.add_bos_token")
    by_words = header.text("tokenizer.ggml.model") == "llama"
    wanted = (
        said if isinstance(said, bool) else by_words or header.text("tokenizer.ggml.pre") in _BEGINS_TEXTS
    )
    token_id = header.metadata.get("tokenizer.ggml.bos_token_id", 1 if by_words else None)
    if not wanted or not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
        return None
    return token_id


def read_header(path: Path) -> GgufHeader:
    """Raises `ModelUnusable` for what is no GGUF file, or not a whole one."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _Reader(file, size, path.name).header()
    except OSError as error:
        raise ModelUnusable(
            f"cannot read {path}: {error.strerror}", "check the path and its rights"
        ) from error


class _Reader:
    """A position in the file, and how much of the caps is used up."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file = file
        self._size = size
        self._at = 0
        self._name = name
        self._items = 0
        self._matrix_types: set[int] = set()
        self._matrices: list[GgufMatrix] = []

    def header(self) -> GgufHeader:
        if self._take(4) != b"GGUF":
            raise ModelUnusable(f"{self._name} is not a GGUF file", "GGUF files start with the letters GGUF")
        version = self._number("<I")
        if version not in (2, 3):
            raise ModelUnusable(f"{self._name} is GGUF version {version}; 2 and 3 can be read")
        tensors = self._count(_MOST_TENSORS, "tensors")
        keys = self._count(_MOST_KEYS, "metadata keys")
        metadata: dict[str, Scalar] = {}
        for _ in range(keys):
            key = self._text()
            value = self._value(int(self._number("<I")))
            if value is not None:
                metadata[key] = value
        end_of_data = self._walk_tensors(tensors)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise self._damaged(f"its alignment is {alignment!r}")
        data_at = -(-self._at // alignment) * alignment
        needed = data_at + end_of_data
        if needed > self._size:
            raise ModelUnusable(
                f"{self._name} is cut off: it has {self._size} bytes and its tensors need {needed}",
                "download it again",
            )
        matrices = tuple(replace(each, starts_at=data_at + each.starts_at) for each in self._matrices)
        return GgufHeader(metadata, tensors, frozenset(self._matrix_types), matrices)

    def _walk_tensors(self, tensors: int) -> int:
        """The end of the last tensor, counted from the start of the data."""
        end = 0
        for _ in range(tensors):
            name = self._text()
            dimensions = int(self._number("<I"))
            if not 0 <= dimensions <= 8:
                raise self._damaged(f"a tensor has {dimensions} dimensions")
            lengths = [int(self._number("<Q")) for _ in range(dimensions)]
            numbers = math.prod(lengths)
            kind = int(self._number("<I"))
            if dimensions > 1:
                self._matrix_types.add(kind)
            per_block, block_bytes = _BLOCK.get(kind, (1, 0))  # unknown: only its start counts
            starts_at = int(self._number("<Q"))
            if dimensions in (1, 2):
                self._matrices.append(GgufMatrix(name, kind, math.prod(lengths[1:]), lengths[0], starts_at))
            end = max(end, starts_at + numbers // per_block * block_bytes)
        return end

    def _value(self, kind: int) -> Scalar | None:
        if kind == _STRING:
            return self._text(keep_up_to=_LONGEST_KEPT)
        if kind == _ARRAY:
            self._skip_array()
            return None
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        raise self._damaged(f"a value has the unknown type {kind}")

    def _skip_array(self) -> None:
        kind = int(self._number("<I"))
        items = self._count(_MOST_ITEMS - self._items, "array items")
        self._items += items
        if kind in _NUMBERS:
            self._skip(items * struct.calcsize(_NUMBERS[kind]))
        elif kind == _STRING:
            for _ in range(items):
                self._skip(int(self._number("<Q")))
        else:
            raise self._damaged(f"an array has items of type {kind}")

    def _text(self, keep_up_to: int = 1 << 16) -> str:
        length = int(self._number("<Q"))
        if length > keep_up_to:
            raise self._damaged(f"a text has {length} bytes")
        return self._take(length).decode("utf-8", "replace")

    def _count(self, most: int, what: str) -> int:
        count = int(self._number("<Q"))
        if count > min(most, self._size - self._at):
            raise self._damaged(f"it claims {count} {what}")
        return count

    def _number(self, form: str) -> int | float | bool:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, length: int) -> bytes:
        self._room(length)
        taken = self._file.read(length)
        if len(taken) != length:
            raise self._damaged("it ends inside its header")
        self._at += length
        return taken

    def _skip(self, length: int) -> None:
        self._room(length)
        self._file.seek(length, 1)
        self._at += length

    def _room(self, length: int) -> None:
        if length > self._size - self._at:
            raise self._damaged("it ends inside its header")

    def _damaged(self, what: str) -> ModelUnusable:
        return ModelUnusable(f"{self._name} is damaged: {what} (byte {self._at})", "download it again")

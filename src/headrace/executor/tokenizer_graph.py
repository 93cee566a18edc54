"""A tokenizer's own graph, run without Python's lock, for texts that take long.

OpenVINO GenAI's `encode` holds the lock as long as it runs, in whatever thread: 2 MB of text stopped
everybody for 0.2 s, 2 MB without a space for 2.5 s. `openvino` runs the same graph and lets go of it.

    folder, GenAI's encode --graph_of--> TokenizerGraph, or None where the two are not the same

GenAI changes some graphs before it runs them, so that they neither cut a text nor put special tokens
around it. Such graphs are left to it.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_tokenizers

NO_LIMIT = np.iinfo(np.int32).max
IDS_AT_ONCE = 50_000
"""To become Python's numbers, in some 2 ms; between them others have the lock."""

_TRIED = ("Hello!", " a\n\n  b\t<|im_start|>\u6771\u4eac 1234567 don't")

Encode = Callable[[str, bool], list[int]]
"""With (True) or without special tokens."""


def tokenizers_core() -> ov.Core:
    """OpenVINO, with the operations that tokenizers are made of."""
    core = ov.Core()
    core.add_extension(str(openvino_tokenizers._ext_path))  # noqa: SLF001 - the library names it nowhere else
    return core


class TokenizerGraph:
    """May be used from many threads, which take turns."""

    def __init__(self, model: ov.Model, core: ov.Core) -> None:
        self._request = core.compile_model(model, "CPU").create_infer_request()
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        with self._lock:
            self._request.infer({0: ov.Tensor([text])})
            ids = self._request.get_tensor("input_ids").data[0].copy()
        tokens: list[int] = []
        for start in range(0, len(ids), IDS_AT_ONCE):
            tokens += ids[start : start + IDS_AT_ONCE].tolist()
        return tokens


def graph_of(folder: Path, encode: Encode) -> TokenizerGraph | None:
    """None where the graph would not do what `encode` does."""
    core = tokenizers_core()
    model = core.read_model(folder / "openvino_tokenizer.xml")
    if any(_cuts(node) for node in model.get_ops()):
        return None
    graph = TokenizerGraph(model, core)
    same = all(encode(text, special) == graph.encode(text) for text in _TRIED for special in (False, True))
    return graph if same else None


def _cuts(node: ov.Node) -> bool:
    """Whether it may leave out tokens of a long text."""
    if node.get_type_name() != "Minimum":
        return node.get_type_name() == "Truncate"
    sources = [place.get_source_output().get_node() for place in node.inputs()]
    limits = [source.get_data() for source in sources if source.get_type_name() == "Constant"]
    return any((limit < NO_LIMIT).any() for limit in limits)

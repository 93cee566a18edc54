"""GGUF to OpenVINO IR, in a process of its own: `python -m headrace.executor.convert FILE FOLDER`.

OpenVINO GenAI reads the file and writes model, tokenizer and detokenizer into the (empty) folder.
A child does it because the reader is C++ that trusts its input (a crash there must not be ours), and
because it keeps 45 MB after a file of 100 MB, which would count against the KV cache.

Three things of the result are mended. Weights were rounded on the way (`exact_weights.py`). The tokenizer
cuts a text to its *last* 8192 tokens without a word, and the detokenizer drops bytes that are not UTF-8, so
half a character cannot be told from nothing. Ours do neither.
"""

import sys
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
from openvino import opset13

from headrace.executor.exact_weights import restore
from headrace.executor.gguf import read_header
from headrace.executor.tokenizer_graph import NO_LIMIT, tokenizers_core

_NO_LIMIT = np.array(NO_LIMIT, dtype=np.int32)


def convert(gguf: Path, folder: Path) -> None:
    """Fill `folder` with the IR of `gguf`."""
    link = folder / "model.gguf"  # the IR is written beside the file that is read
    link.symlink_to(gguf.resolve())
    openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    link.unlink()
    mend_weights(folder, gguf)
    mend(folder)


def mend_weights(folder: Path, gguf: Path) -> None:
    """Rewrite the model with the weights that the file has."""
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})  # its files are written over
    model = core.read_model(folder / "openvino_model.xml")
    restore(model, gguf, read_header(gguf))
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)


def mend(folder: Path) -> None:
    """Rewrite the tokenizer and the detokenizer without their faults."""
    core = tokenizers_core()
    for name in ("openvino_tokenizer", "openvino_detokenizer"):
        model = core.read_model(folder / f"{name}.xml")
        for node in model.get_ops():
            if node.get_type_name() == "Minimum":
                _lift_limit(node)
            elif node.get_type_name() == "UTF8Validate":
                node.set_attribute("replace_mode", True)
        ov.save_model(model, folder / f"mended_{name}.xml", compress_to_fp16=False)
        del model  # it maps the .bin file that is replaced now
        for suffix in (".xml", ".bin"):
            (folder / f"mended_{name}{suffix}").replace(folder / f"{name}{suffix}")


def _lift_limit(minimum: ov.Node) -> None:
    """`min(length, 8192)` becomes `min(length, as good as no limit)`."""
    for place in minimum.inputs():
        if place.get_source_output().get_node().get_type_name() == "Constant":
            place.replace_source_output(opset13.constant(_NO_LIMIT).output(0))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))

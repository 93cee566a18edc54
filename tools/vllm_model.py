"""Turn a GGUF file into the folder that vLLM serves: float weights, config and tokenizer.

python tools/vllm_model.py MODEL.gguf FOLDER       (with the Python of vLLM's environment)
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    del model.config.quantization_config  # of the file it came from; the weights are plain floats now
    model.config.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    # The output projection is the embedding: written once, or vLLM loads it twice.
    weights = {name: w.contiguous() for name, w in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
    unfinished.rename(folder)


if __name__ == "__main__":
    main()

"""`headrace serve` without a model, for a soak of everything but the arithmetic.

    python -m bench.soak.scripted serve scripted --max-model-len 2048 ...

The real command with the real flags; in place of the model, the executor of the tests, which checks
every block table that it is handed.
"""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from headrace.cli import serve as serve_module
from headrace.cli.main import main
from headrace.cli.recipe import Flags
from headrace.engine.engine import Engine
from headrace.executor.scripted import ScriptedExecutor, ScriptedTokenizer
from headrace.net.engine_process import Built
from headrace.net.messages import Budget

MAX_MODEL_LEN = 4096
BLOCK_SIZE = 32
STEP_S = 0.01


class ScriptedRecipe:
    """In the place of `EngineRecipe`."""

    def __init__(self, _files: object, flags: Flags) -> None:
        self._flags = flags

    def __call__(self) -> Built:
        blocks = self._flags.num_gpu_blocks_override or 161
        settings = self._flags.settings(blocks, BLOCK_SIZE)
        executor = ScriptedExecutor(blocks, BLOCK_SIZE, step_s=STEP_S)
        return Built(Engine(settings), executor, Budget(1, 1, "none"))


def _locate(model: str, *_: object) -> Any:
    return SimpleNamespace(name=model, max_model_len=MAX_MODEL_LEN, weights_bytes=0)


def _tokenizer(_files: object) -> ScriptedTokenizer:
    return ScriptedTokenizer()


if __name__ == "__main__":
    with patch.multiple(
        serve_module, locate=_locate, EngineRecipe=ScriptedRecipe, OpenVinoTokenizer=_tokenizer
    ):
        main()

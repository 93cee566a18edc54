"""Our KV cache arithmetic beside that of vLLM 0.32's own functions, layer kinds by layer kinds.

every model of the catalogue on 1, 2, 4 and 8 ranks, and kinds drawn at random -> vLLM -> the same or not
"""

import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.capacity.catalogue import catalogue
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpus import GPUS
from headrace.capacity.kv_groups import KvLayers, KvLayout, Sizing, kv_layout
from headrace.capacity.memory import kv_layers, sizing_of
from headrace.core.errors import TargetFailed

_POOL_BYTES = 48 << 30


@dataclass(frozen=True, slots=True)
class Question:
    """Layers of one rank, and what is served with them."""

    name: str
    kinds: tuple[KvLayers, ...]
    is_latent: bool
    max_model_len: int
    sizing: Sizing

    @property
    def layout(self) -> KvLayout:
        return kv_layout(self.kinds, 16)

    def ours(self) -> dict[str, Any]:
        layout = self.layout
        blocks = layout.num_blocks(_POOL_BYTES)
        return {
            "groups": layout.num_groups,
            "blocks": blocks,
            "blocks_per_request": layout.blocks_per_request(self.max_model_len, self.sizing),
            "concurrency": layout.max_concurrency(blocks, self.max_model_len, self.sizing),
            "longest": layout.longest(_POOL_BYTES // layout.bytes_per_block, self.max_model_len, self.sizing),
        }

    def for_vllm(self) -> str:
        """Its block size comes from us: what inflates it is its platform's, not these functions'."""
        inflated = min(group.block_size for group in self.layout.groups)
        states = any(kind.state_bytes for kind in self.kinds)
        return json.dumps(
            {
                "kinds": [asdict(kind) | {"is_latent": self.is_latent} for kind in self.kinds],
                "block_size": inflated if states else 16,
                "bytes": _POOL_BYTES,
                "max_model_len": self.max_model_len,
                "tokens_in_flight": self.sizing.tokens_in_flight,
                "state_blocks": self.sizing.state_blocks,
            }
        )


def questions_of_catalogue() -> Iterator[Question]:
    for name, entry in catalogue().items():
        for size in (1, 2, 4, 8):
            if entry.shape.num_heads % size:
                continue
            deployment = Deployment(entry.shape, GPUS["h200"], size, max_num_batched_tokens=8192)
            kinds = kv_layers(deployment)
            length = min(entry.shape.max_model_len, 131_072)
            latent = entry.shape.latent is not None
            yield Question(f"{name} on {size}", kinds, latent, length, sizing_of(deployment))


def drawn_questions(count: int, seed: int = 1) -> Iterator[Question]:
    """Full attention, and windows or chunks or states beside it."""
    chance = random.Random(seed)
    for number in range(count):
        full = KvLayers(chance.randint(1, 60), float(512 << chance.randint(0, 4)))
        others = [
            KvLayers(chance.randint(1, 90), full.bytes_per_token, chance.randint(1, 16_384)),
            KvLayers(chance.randint(1, 90), full.bytes_per_token * 2, chance.randint(1, 16_384)),
            KvLayers(chance.randint(1, 90), full.bytes_per_token, chance.randint(1, 16_384), is_chunked=True),
            KvLayers(chance.randint(1, 90), state_bytes=chance.randint(1000, 4_000_000)),
        ]
        kinds = (full, *chance.sample(others, chance.randint(0, 1)))
        sizing = Sizing(chance.randint(1, 4) * 2048, chance.randint(1, 2))
        yield Question(f"drawn {number}", kinds, False, chance.randint(1, 200_000), sizing)


def disagreements(installation: Path, questions: list[Question]) -> list[str]:
    """One line for each that vLLM answers otherwise. Raises `TargetFailed` where it cannot be asked."""
    python = installation / "bin" / "python"
    if not python.exists():
        raise TargetFailed(f"there is no vLLM in {installation}", "make vllm")
    asked = "".join(question.for_vllm() + "\n" for question in questions)
    done = subprocess.run(
        [str(python), "-m", "bench.plan.vllm_side"], input=asked, capture_output=True, text=True, check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(answers) != len(questions):
        raise TargetFailed(
            f"vLLM's functions answered {len(answers)} of {len(questions)}: {done.stderr[-600:]}"
        )
    return [
        f"{question.name}: {figure} is {theirs[figure]}, ours {ours}"
        for question, theirs in zip(questions, answers, strict=True)
        for figure, ours in question.ours().items()
        if ours != theirs[figure]
    ]

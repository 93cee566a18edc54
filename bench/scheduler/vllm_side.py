"""vLLM 0.32's scheduler as a `Side`, in a process of vLLM's environment.

{"kind", "running", "waiting"} a line: come into that state   ->  []
{"steps": 50}                                                 ->  [ns, ns, ...]
"""

import gc
import sys
import time

import msgspec
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from bench.parity.vllm_side import block_hasher, make_scheduler
from bench.scheduler.states import BLOCK_SIZE, VOCABULARY, Player, State


class Theirs:
    def __init__(self, state: State) -> None:
        self._scheduler = make_scheduler(state.settings)
        self._steps = 0

    def add(self, number: int, prompt: list[int], max_tokens: int) -> int:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        began_ns = time.perf_counter_ns()
        request = Request(
            request_id=str(number),
            prompt_token_ids=prompt,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=float(number),
            block_hasher=block_hasher(BLOCK_SIZE),
        )
        self._scheduler.add_request(request)
        return time.perf_counter_ns() - began_ns

    def step(self) -> int:
        scheduler = self._scheduler
        began_ns = time.perf_counter_ns()
        output = scheduler.schedule()
        decided_ns = time.perf_counter_ns() - began_ns
        self._steps += 1
        names = list(output.num_scheduled_tokens)
        requests = [scheduler.requests[name] for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[
                [] if each.is_prefill_chunk else [(self._steps + each.num_computed_tokens) % VOCABULARY]
                for each in requests
            ],
        )
        began_ns = time.perf_counter_ns()
        scheduler.update_from_output(output, result)
        return decided_ns + time.perf_counter_ns() - began_ns

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever vLLM prints must not mix with the answers
    init_none_hash(sha256)
    players: dict[State, Player] = {}
    for line in sys.stdin:
        asked = msgspec.json.decode(line)
        state = State(**asked["state"])
        if any((other.kind, other.running) != (state.kind, state.running) for other in players):
            players.clear()
            gc.unfreeze()
        if state not in players:
            players[state] = Player(Theirs(state), state)
        took_ns = players[state].steps(asked["steps"])
        answers.write(msgspec.json.encode(took_ns).decode() + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

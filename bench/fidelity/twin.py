"""The twin's side of a comparison: what arrives, how the server is set, and what is predicted of it."""

from collections.abc import Sequence
from dataclasses import replace

from bench.fidelity.comparison import seen_of
from bench.fidelity.record import Seen
from bench.fidelity.scenarios import Budgets, Scenario, as_trace, requests
from headrace.core.exchange import Arrival
from headrace.core.ports import Tokenizer
from headrace.core.settings import Settings
from headrace.executor.cost import FittedCost
from headrace.sim.measurement import timelines_and_failures
from headrace.sim.run import Fleet, simulate
from headrace.workload.trace import TraceRequest


class Twin:
    """Of a server that was calibrated. Everything follows from the cost model, so it can be done again."""

    def __init__(self, cost: FittedCost, tokenizer: Tokenizer, probe_rps: float) -> None:
        """`probe_rps` only says how many requests it is given to find the knee with."""
        assert cost.machine is not None, "a calibration says what machine it is of"
        self.cost = cost
        self._machine = cost.machine
        self._tokenizer = tokenizer
        self._probe_rps = probe_rps

    def arrivals(self, scenario: Scenario, run_s: float, seed: int) -> tuple[Arrival, ...]:
        """At `scenario.load` times the rate at which the twin, given everything at once, gets done."""
        probe = requests(scenario.kind, self._probe_rps, run_s, seed)
        at_once = [replace(traced, due_at=0.0) for traced in self.trace(probe)]
        simulated = simulate(at_once, self.settings(scenario.budgets), self.cost)
        knee_rps = len(probe) / max(ends[-1] / 1e9 for ends in simulated.step_ends_ns)
        return requests(scenario.kind, scenario.load * knee_rps, run_s, seed)

    def predict(self, arrivals: Sequence[Arrival], budgets: Budgets) -> Seen:
        assert self.cost.front_end is not None, "a calibration measures it"
        fleet = Fleet(front_end=self.cost.front_end)
        simulated = simulate(self.trace(arrivals), self.settings(budgets), self.cost, fleet=fleet)
        return seen_of(timelines_and_failures(simulated), simulated.preemptions)

    def trace(self, arrivals: Sequence[Arrival]) -> tuple[TraceRequest, ...]:
        return as_trace(arrivals, self._tokenizer, self._machine.block_size)

    def settings(self, budgets: Budgets) -> Settings:
        machine = self._machine
        batched = budgets.get("max_num_batched_tokens", machine.max_num_batched_tokens)
        blocks = machine.num_gpu_blocks(machine.block_size)
        return Settings(
            max_model_len=budgets.get("max_model_len", machine.max_model_len),
            num_gpu_blocks=budgets.get("num_gpu_blocks_override", blocks),
            block_size=machine.block_size,
            max_num_batched_tokens=batched,
            max_num_seqs=budgets.get("max_num_seqs", min(machine.max_num_seqs, batched)),
            long_prefill_token_threshold=budgets.get("long_prefill_token_threshold", 0),
        )

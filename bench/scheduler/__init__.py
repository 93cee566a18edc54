"""How fast steps are decided: vLLM's own scheduler and ours in one run, from the same states."""

"""Decision parity: vLLM's own scheduler and ours over the same traces, compared after every step."""

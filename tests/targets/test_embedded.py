"""What is this target's own; the rest is in test_contract.py."""

from headrace.targets.embedded import EmbeddedServer


def test_the_command_is_what_a_person_would_type() -> None:
    server = EmbeddedServer("my model.gguf", {"max_num_seqs": 32, "enable_prefix_caching": False})
    assert server.command == "headrace serve 'my model.gguf' --max-num-seqs 32 --no-enable-prefix-caching"

"""How a request says whose goals are its own (`--slo`)."""

import json

import pytest

from headrace.net.front_end import _request_class
from headrace.net.wire import read_chat

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("said", "request_class"),
    [
        ({}, ""),
        ({"model": "chat"}, "chat"),
        ({"model": "smollm2", "service_tier": "chat"}, "chat"),
        ({"model": "chat", "service_tier": "auto"}, "chat"),
        ({"model": "chat", "service_tier": "default"}, "chat"),
        ({"model": "chat", "service_tier": None}, "chat"),
    ],
)
def test_the_service_tier_says_the_class_and_otherwise_the_name_of_the_model(
    said: dict[str, str], request_class: str
) -> None:
    asked = read_chat(json.dumps({"messages": MESSAGES} | said).encode())
    assert _request_class(asked) == request_class

"""A workload as what is sent: requests with texts, for whoever sends them.

TraceRequest, … + ExactTexts --arrivals_of--> Arrival(due_at, Ask), …     one at a time
"""

from collections.abc import Iterable, Iterator

from headrace.core.exchange import Arrival, Ask
from headrace.workload.texts import ExactTexts
from headrace.workload.trace import TraceRequest


def arrivals_of(requests: Iterable[TraceRequest], texts: ExactTexts) -> Iterator[Arrival]:
    """Raises `BadInput` for a prompt shorter than the tokenizer can make any."""
    for number, request in enumerate(requests):
        ask = Ask(
            request_id=f"{request.request_class}-{number}",
            request_class=request.request_class,
            prompt=texts.prompt(request, number),
            max_tokens=request.output_tokens,
            priority=request.priority,
        )
        yield Arrival(request.due_at, ask)

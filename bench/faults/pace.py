"""How fast a server is on this machine, measured before its first fault: loads are sized by it.

url, model -> measured -> Speed(prompt tokens a second, tokens a second of eight streams)
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from bench.faults.loads import Prompts
from headrace.core.exchange import Answer, Ask, Sender
from headrace.net.client import HttpSender

LONG = Prompts((400, 400), (1, 1))
STREAMS, STREAM = 8, Prompts((20, 30), (40, 40))
LONGS = 3
"""The fastest of so many: what else the machine does can only slow one down."""
WITHIN_S = 120.0


class NoPace(Exception):
    """The server did not answer what it was timed with."""


@dataclass(frozen=True, slots=True)
class Speed:
    prefill: float
    """Prompt tokens a second, one prompt alone."""
    decode: float
    """Tokens a second, eight streams together."""


async def measured(url: str, model: str) -> Speed:
    """Takes some seconds. Raises `NoPace`."""
    async with HttpSender(url, model, clock=time.monotonic, timeout_s=WITHIN_S) as sender:
        alone = [await _answered(sender, ask) for ask in islice(LONG.asks("pace", 0), LONGS)]
        together = [_answered(sender, ask) for ask in islice(STREAM.asks("pace", 1), STREAMS)]
        return Speed(max(map(prefill_rate, alone)), decode_rate(await asyncio.gather(*together)))


async def _answered(sender: Sender, ask: Ask) -> Answer:
    answer = await sender.send(ask)
    if isinstance(answer, Answer):
        return answer
    raise NoPace(f"{ask.request_id}: {answer.reason}")


def prefill_rate(answer: Answer) -> float:
    """Tokens of its prompt a second until its first token."""
    return answer.prompt_tokens / (answer.token_at[0] - answer.sent_at)


def decode_rate(answers: Sequence[Answer]) -> float:
    """Tokens a second of all, from when each has its first one until the first has its last."""
    begin = max(answer.token_at[0] for answer in answers)
    end = min(answer.token_at[-1] for answer in answers)
    if end <= begin:
        raise NoPace("the streams did not run together")
    return sum(begin < at <= end for answer in answers for at in answer.token_at) / (end - begin)

"""What the HTTP process and the engine's process say to each other.

    HTTP process                                        engine process
        Submit, Cancel, Expire, Leave  ---------->
                                       <----------      Ready, Taken, Refused, Expired, Step, Stopped

One message is one frame: four bytes of length, then MessagePack. Requests and outputs cross
as the records of `core` that they are; a step's whole news is one `Step`, however many
requests took part, so the HTTP process wakes once a step.
"""

from dataclasses import dataclass

import msgspec

from headrace.core.errors import BadInput, EngineDied, HeadraceError, ModelUnusable, NeverFits
from headrace.core.output import BlockNews, EngineStats, Output
from headrace.core.request import Request
from headrace.core.settings import Settings

LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the memory went: what the engine's settings do not say by themselves."""

    weights_bytes: int
    kv_cache_bytes: int
    kv_cache_dtype: str


class Submit(msgspec.Struct, tag="submit", array_like=True):
    """Run this. Answered by outputs in `Step`s, or by one `Refused`."""

    request: Request


class Cancel(msgspec.Struct, tag="cancel", array_like=True):
    """Nobody listens to this request any more; give its blocks back."""

    request_id: str


class Expire(msgspec.Struct, tag="expire", array_like=True):
    """Drop this request if no step has taken it in yet. Answered by `Expired` if that was so."""

    request_id: str


class Leave(msgspec.Struct, tag="leave", array_like=True):
    """End, whatever still runs. Draining is the HTTP side's business: it knows the listeners."""


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """The model is loaded; requests may come."""

    settings: Settings
    budget: Budget


class Taken(msgspec.Struct, tag="taken", array_like=True):
    """The first `number` submissions are before the scheduler, and it has planned a step with them.

    Said at its beginning: until its end, which may be seconds away, nothing else would be heard of them.
    """

    number: int
    running: int
    waiting: int


class Refused(msgspec.Struct, tag="refused", array_like=True):
    """The engine will not run this request; it holds nothing for it."""

    request_id: str
    problem: "Problem"


class Expired(msgspec.Struct, tag="expired", array_like=True):
    """The request was still waiting and is dropped; the engine holds nothing for it."""

    request_id: str


class Step(msgspec.Struct, tag="step", array_like=True):
    """Everything one step brought. Without tokens: the engine has come to rest, `stats` are news."""

    finished_ns: int
    outputs: list[Output]
    stats: EngineStats
    tokens: int = 0
    sequences: int = 0
    plan_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    blocks: BlockNews | None = None


class Stopped(msgspec.Struct, tag="stopped", array_like=True):
    """The last message of a process that could not start, or cannot go on."""

    problem: "Problem"


class Problem(msgspec.Struct, array_like=True):
    """A `HeadraceError` on its way to the other process."""

    kind: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, error: HeadraceError) -> "Problem":
        return cls(type(error).__name__, str(error), error.hint)

    def error(self) -> HeadraceError:
        """The error again; a kind that does not cross becomes `EngineDied`."""
        return _KINDS.get(self.kind, EngineDied)(self.message, self.hint)


_KINDS: dict[str, type[HeadraceError]] = {
    kind.__name__: kind for kind in (BadInput, NeverFits, ModelUnusable, EngineDied)
}

ToEngine = Submit | Cancel | Expire | Leave
FromEngine = Ready | Taken | Refused | Expired | Step | Stopped

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def frame(message: ToEngine | FromEngine) -> bytes:
    """`message` as it goes over the wire."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def read_to_engine(payload: bytes | bytearray | memoryview) -> ToEngine:
    return _to_engine.decode(payload)


def read_from_engine(payload: bytes | bytearray | memoryview) -> FromEngine:
    return _from_engine.decode(payload)

"""From bytes to typed fields, or to a 400 that names the field.

    raw --decode(Struct)--> fields | BadField

Unknown fields are passed over, as vLLM does, with a line in the debug log: other clients' extensions
must not keep a request from being answered.
"""

import logging
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from headrace.core.errors import BadInput

_log = logging.getLogger(__name__)
_Fields = TypeVar("_Fields", bound=msgspec.Struct)


class BadField(BadInput):
    """A request field that cannot be used; `param` names it."""

    def __init__(self, param: str | None, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.param = param


class BodyTooLarge(BadInput):
    """More bytes than a prompt that fits could need. HTTP 413."""


class BodyTooSlow(BadInput):
    """The rest of the body did not come in time. HTTP 408."""


def decode(kind: type[_Fields], raw: bytes) -> _Fields:
    """`raw` as a `kind`. Raises `BadField`."""
    try:
        raw.decode()  # msgspec does not look at the bytes of what it passes over
        fields = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        place = place.rstrip("`")
        where = f"{place} is {_shown_at(raw, place)}: " if place else ""
        missing = re.fullmatch(r"Object missing required field `(.+)`", problem)
        param = ".".join(filter(None, (place, missing and missing[1])))
        raise BadField(param or None, f"invalid request: {where}{problem}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadField(None, f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise BadField(None, "the body is not valid JSON: nested too deeply") from error
    if _log.isEnabledFor(logging.DEBUG):
        unknown = _names(raw) - _known(kind)
        _log.debug("%d fields that mean nothing here, passed over: %s", len(unknown), _loggable(unknown))
    return fields


def _loggable(names: set[str]) -> list[str]:
    """Only what looks like a field: a prompt that came as a name belongs in no log."""
    return sorted(name for name in names if re.fullmatch(r"[a-z_]{1,40}", name))[:20]


def has_field(raw: bytes, name: str) -> bool:
    """Whether the JSON object `raw` says `name`, and not null; False for what is no JSON object."""
    try:
        value = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get(name)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return value is not None and bytes(value) != b"null"


def refuse(
    body: msgspec.Struct, neutral: dict[str, tuple[Any, ...]], hint: str = "", *, inside: str = ""
) -> None:
    """Raise `BadField` for a field of `neutral` that says anything but one of its neutral values."""
    for name, values in neutral.items():
        value = getattr(body, name)
        if value is not None and not any(_is_same(value, each) for each in values):
            raise BadField(
                inside + name, f"{name}={shown(value)} is not supported", hint or f"leave {name} out"
            )


def shown(value: object) -> str:
    """`value` for a person: a bounded piece of it, whatever its size."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    if isinstance(value, list | dict):
        kind, size = ("a list", "items") if isinstance(value, list) else ("an object", "fields")
        return f"{kind} of {len(value)} {size}"
    return f"{value!r:.80}"


def within_vocabulary(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Raise `BadField` for token ids that the model does not have."""
    wrong = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    if wrong:
        raise BadField(name, f"{name} has {shown(wrong[0])}; the vocabulary has {vocab_size} tokens")


def _is_same(value: object, neutral: object) -> bool:
    """Equal, and a truth value or none of them: 0 may ask for something where False does not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _names(raw: bytes) -> set[str]:
    return set(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]))


def _known(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def _shown_at(raw: bytes, place: str) -> str:
    """The value at `place` ("stop[1]", say); an unknown key of an object shows as `[...]` there."""
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):  # a number of no size, say
        return "wrong"
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        try:
            value = value[int(index)] if index else value[name]
        except (KeyError, IndexError, TypeError):
            return "wrong inside" if isinstance(value, dict) else shown(value)
    return shown(value)

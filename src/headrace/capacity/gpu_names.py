"""Cards by the names that people have for them, and those that were perhaps meant.

"RTX 4090" | "rtx4090" | "4090" | "NVIDIA GeForce RTX 4090" --gpu_named--> Gpu
"""

import re
from difflib import SequenceMatcher

from headrace.capacity.gpus import GPUS, Gpu
from headrace.core.errors import BadInput

_ALSO = {
    "a100": "a100-80", "a10080gb": "a100-80", "a10040gb": "a100-40", "a800": "a100-80", "h100sxm": "h100",
    "h10080gb": "h100", "h800": "h100", "v100": "v100-32", "v10032gb": "v100-32", "dgxspark": "gb10",
    "spark": "gb10", "306012gb": "rtx-3060", "4060ti16gb": "rtx-4060-ti", "5060ti16gb": "rtx-5060-ti",
}  # fmt: skip
"""Without what `_bare` leaves out. A800 and H800 compute as their siblings; their links are slower."""
_NEAR = 0.52
"""Of names without a number: so alike at least."""


def _bare(name: str) -> str:
    """Without maker, family and whatever separates."""
    return re.sub(r"nvidia|geforce|tesla|amd|instinct|rtx|[^a-z0-9]", "", name.lower())


_BY_BARE = {_bare(name): name for name in GPUS} | _ALSO


def gpu_named(name: str) -> Gpu:
    """Raises `BadInput` with the names that are near, or all where none is."""
    card = _BY_BARE.get(_bare(name))
    if card is not None:
        return GPUS[card]
    near = _near(_bare(name))
    hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(GPUS)}."
    raise BadInput(f"no GPU {name!r} in the catalogue", hint)


def _near(wanted: str) -> list[str]:
    """Up to three cards, the nearest first: those with the same number, then those of the same family whose
    number begins alike (RTX 3070: 3060, 3090), then those that are written alike.
    """
    ranked = sorted(((_likeness(wanted, bare), card) for bare, card in _BY_BARE.items()), reverse=True)
    near = [card for (same, kin, begun, alike), card in ranked if same or (kin and begun) or alike >= _NEAR]
    return list(dict.fromkeys(near))[:3]


def _likeness(wanted: str, bare: str) -> tuple[bool, bool, int, float]:
    """Same number, same family, how many digits begin alike, how near it is: numbers of other lengths are of
    other families, however many digits they share (3060 and B300), and of two digits anybody's.
    """
    (letters, number), (theirs, other) = _parts(wanted), _parts(bare)
    alike = SequenceMatcher(None, wanted, bare).ratio()
    if not number:
        return False, False, 0, alike
    if len(number) != len(other):
        if letters == theirs and other and (number.startswith(other) or other.startswith(number)):
            return False, True, min(len(number), len(other)), alike
        return False, False, 0, alike if len(number) < 4 and len(other) < 4 and letters == theirs else 0.0
    begun = next(
        (place for place, pair in enumerate(zip(number, other, strict=True)) if len(set(pair)) > 1), 4
    )
    if letters == theirs and begun:
        return number == other, True, begun, 1 - abs(int(number) - int(other)) / 10_000
    return number == other and len(number) > 2, letters == theirs, begun, alike


def _parts(bare: str) -> tuple[str, str]:
    """Letters before the number, and the number: "mi", "300" of MI300X."""
    found = re.match(r"([a-z]*)(\d*)", bare)
    return (found[1], found[2]) if found else ("", "")

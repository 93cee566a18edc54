"""Durations and counts for people: three digits that matter and a unit, one request and two requests."""


def seconds(amount_s: float) -> str:
    """`3.52 s`, `312 ms`, `0.41 ms`; at most 7 characters up to a day."""
    if amount_s >= 1000:
        return f"{amount_s:.0f} s"
    if amount_s >= 0.9995:
        return f"{_three_digits(amount_s)} s"
    return f"{_three_digits(amount_s * 1000)} ms" if amount_s else "0 ms"


def _three_digits(amount: float) -> str:
    if amount >= 99.95:
        return f"{amount:.0f}"
    return f"{amount:.1f}" if amount >= 9.995 else f"{amount:.2f}"


def many(count: int, noun: str, plural: str = "") -> str:
    """`1 request`, `2,000 requests`; `plural` where an s does not make it."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def roughly(amount_s: float) -> str:
    """How long there is to wait: `40 s`, `8 min`, `1 h 20 min`."""
    if amount_s < 89.5:
        return f"{max(0.0, amount_s):.0f} s"
    hours, minutes = divmod(round(amount_s / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"

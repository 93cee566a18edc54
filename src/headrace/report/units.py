"""Durations for people: three digits that matter and a unit."""


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

"""Numbers for people: bytes, durations and counts as short text."""

from __future__ import annotations

import math
import re

__all__ = ["counted", "format_bytes", "format_bytes_above", "format_count", "format_duration", "parse_bytes"]

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACTORS = {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate(("", "k", "m", "g", "t"))
    for ending, base in (("b", 1000), ("ib", 1024), ("", 1024))
}


def parse_bytes(text: str) -> int:
    """Return the bytes that ``24 GB`` (10^9), ``24 GiB`` or ``24G`` (2^30) or a bare number say.

    Raises:
        ValueError: it is something else, or not above zero.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    factor = _FACTORS.get(found.group(2).lower()) if found else None
    if found is None or factor is None or not float(found.group(1)):
        raise ValueError(f"{text!r} is not a size in bytes such as 24GiB")
    return int(float(found.group(1)) * factor)


def format_bytes(num_bytes: float) -> str:
    """Return ``num_bytes`` in binary units with three significant digits (``1.50 GiB``)."""
    size = float(num_bytes)
    unit = _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        # 999.5 would print as 1000 with three digits, so the next unit takes over before
        if abs(size) < 999.5 or unit == _BYTE_UNITS[-1]:
            break
        size /= 1024
    if unit == "B":
        return f"{int(num_bytes)} B"
    digits = 2 if abs(size) < 9.995 else 1 if abs(size) < 99.95 else 0
    return f"{size:.{digits}f} {unit}"


def format_bytes_above(num_bytes: int) -> str:
    """Return the smallest size that :func:`format_bytes` shows and :func:`parse_bytes` reads as ``num_bytes`` or more.

    For 1 byte to 999 TiB.
    """
    # finer than three digits, so that no figure is left out
    held, step = num_bytes, max(1, num_bytes // 2000)
    while parse_bytes(format_bytes(held)) < num_bytes:
        held += step
    return format_bytes(held)


def format_duration(seconds: float) -> str:
    """Return a duration as ``42s``, ``3m 05s``, ``2h 07m`` or ``4d 03h``; ``?`` when it is not finite."""
    if not math.isfinite(seconds):
        return "?"
    seconds = max(0.0, seconds)
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    if minutes:
        return f"{minutes}m {rest:02d}s"
    return f"{whole}s" if whole >= 10 or seconds == whole else f"{seconds:.1f}s"


def format_count(count: float) -> str:
    """Return a count as ``950``, ``12.3k``, ``1.80M`` or ``7.24B``."""
    for limit, suffix in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        # what would round up to 1000.0 of the unit below is 1.00 of this one
        if abs(count) >= (limit if suffix == "k" else 0.99995 * limit):
            scaled = count / (1e3 if suffix == "k" else limit)
            return f"{scaled:.2f}{suffix}" if abs(scaled) < 10 else f"{scaled:.1f}{suffix}"
    return f"{count:,.0f}"


def counted(count: int, name: str) -> str:
    """Return ``1 trial``, ``2 trials`` or ``1,200 trials``: a count with its name, whose plural ends in s."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"

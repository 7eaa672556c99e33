"""Amounts of memory as people read them, and as frameworks write them."""

from __future__ import annotations

import re
from typing import Optional

#: The unit in which device memory is leased.
GRANULARITY = 2 << 20

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_WRITTEN = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*(bytes|B|KiB|MiB|GiB|TiB)\b")


def text(size: float) -> str:
    """Bytes as "1.5 GiB", "640 MiB" or "12 B"; below zero with a minus sign."""
    if size < 0:
        return f"-{text(-size)}"
    for unit, worth in _UNITS:
        if size >= worth:
            return f"{size / worth:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size:.0f} B"


def argument(size: int) -> str:
    """Bytes as `gpulease run -m` takes them, no smaller: "12345MiB"."""
    return f"{-(-size // (1 << 20))}MiB"


def rounded_up(size: float) -> int:
    """The next multiple of the unit of leases."""
    return -(-int(-(-size // 1)) // GRANULARITY) * GRANULARITY


def read(written: str, *after: str) -> Optional[int]:
    """The first amount that stands after the first of these words that is there, or None."""
    at = next((at + len(words) for words in after if (at := written.find(words)) >= 0), None)
    found = None if at is None else _WRITTEN.search(written, at)
    if found is None:
        return None
    worth = dict(_UNITS).get(found.group(2), 1)
    return round(float(found.group(1).replace(",", "")) * worth)

"""How a step's peak rises with the batch.

A step has phases, and its peak is that of the largest: the optimizer's temporaries, which no batch changes, or what the
forward pass keeps, which grows with each sample. So the peak over the batch is the upper edge of several straight lines:
convex, and flat while the batch is small. Three rules follow.

- Between two measured sizes the straight line through their peaks is never below that edge.
- A line through small batches says nothing of large ones. The rise is steady where the last two slopes agree, by more than
  chance, and samples make up half of what the steps take: a phase more than twice as steep would be above that already.
- Without a steady rise there is still a bound. No line that begins at or above the memory in use before the first step,
  the floor, gets away from the one that begins there and goes through the last measured peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

#: Slopes that differ by no more than this share of the steeper one are taken for one, unless chance may do as much.
_AGREE = 0.1
#: What samples make up of what the steps take, where a rise is steady.
_SHARE = 0.5
#: PyTorch takes small tensors from blocks of so many bytes: by one of them two peaks differ for no reason.
_BLOCK = 20 << 20
#: An exponent that is above a whole number by no more is taken for it.
_WHOLE = 0.1


class Point(NamedTuple):
    """A batch size and the bytes that it took."""

    size: int
    peak: int


class Rise(NamedTuple):
    """`fixed + each * size ** power`, through the last measured point."""

    fixed: float
    each: float
    power: int
    #: By how much a larger batch may be above it, as a share.
    error: float

    def at(self, size: int) -> int:
        """The bytes that a batch of this size takes, rounded up."""
        return math.ceil(self.fixed + self.each * float(size) ** self.power)


def slope(one: Point, other: Point) -> float:
    """Bytes for each sample from one point to another."""
    return (other.peak - one.peak) / (other.size - one.size)


def is_steady(points: Sequence[Point], floor: int) -> bool:
    """Whether the points, in order of their sizes, rise as they will for larger ones."""
    if len(points) < 3:
        return False
    steep, apart, chance = _last_slopes(points)
    last = points[-1]
    return max(apart, chance) <= _AGREE and steep * last.size >= _SHARE * (last.peak - floor)


def steady(points: Sequence[Point]) -> Rise:
    """The rise goes on as it was in the end, with the steeper of the last two slopes."""
    steep, apart, chance = _last_slopes(points)
    last = points[-1]
    return Rise(last.peak - steep * last.size, steep, 1, apart + chance)


def bound(points: Sequence[Point], floor: int) -> Rise:
    """What no step exceeds whose phases grow with the batch; or with a power of it, where the points do."""
    last = points[-1]
    power = _power(points, floor)
    return Rise(floor, max(0, last.peak - floor) / last.size**power, power, 0.0)


def _last_slopes(points: Sequence[Point]) -> tuple[float, float, float]:
    """The steeper of the last two slopes, and as shares of it how far they are apart and what chance may do to it."""
    before, after = slope(points[-3], points[-2]), slope(points[-2], points[-1])
    steep = max(before, after)
    if steep <= 0:
        return steep, math.inf, math.inf
    return steep, abs(after - before) / steep, _BLOCK / (steep * (points[-1].size - points[-2].size))


def _power(points: Sequence[Point], floor: int) -> int:
    """1 for a rise that lines explain; 2 for what grows with all pairs of samples, and so on."""
    if len(points) < 2:
        return 1
    one, other = points[-2:]
    # Lines that begin at the floor or above do not rise by more than the sizes do, whatever their slopes.
    times = (other.peak - floor) / max(one.peak - floor + _BLOCK, 1)
    exponent = math.log(times) / math.log(other.size / one.size) if times > 1 else 1.0
    return max(1, math.ceil(exponent - _WHOLE))

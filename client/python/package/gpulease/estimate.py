"""What a job will need, before it asks for a lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Optional

from . import rise
from .batch_size import NothingFits, Within, allowed, largest
from .leases import lease
from .memory import Memory, memory_or_default
from .rise import Point, Rise
from .sizes import argument, rounded_up, text
from .trial import Step, Trial, attempt, clear

#: How many times the largest of the given sizes is tried at most, where nobody says.
_TIMES = 64
#: More samples than anybody has.
_MOST = 1 << 40


@dataclass(frozen=True)
class Estimate:
    """Measured peaks, and how they go on for larger batches. Sizes are bytes."""

    #: Of larger batches: what does not depend on the batch, such as weights, gradients, optimizer state.
    fixed: float
    #: Of larger batches: what each sample adds. To be multiplied by `batch_size ** power`.
    per_sample: float
    #: By how much a batch larger than all measured ones may be above `peak`, as a share of it: what the last two slopes
    #: differ by, and one block of the allocator's. 0 where the rise was not steady, since `peak` is an upper bound then.
    error: float
    #: What was tried, the smallest batch first.
    trials: tuple[Trial, ...]
    #: Why no larger batch was tried: "settled" where the rise was steady, "memory" where it did not fit, "up_to" where
    #: none was allowed.
    limited_by: Literal["settled", "memory", "up_to"]
    #: 1, or 2 where memory grows with the square of the batch, as a matrix of all pairs of its samples does.
    power: int = 1

    @property
    def settled(self) -> bool:
        """Whether the rise was steady in the end. If not, batches larger than the measured ones are bounded, not estimated."""
        return self.limited_by == "settled"

    def peak(self, batch_size: int) -> int:
        """The most that a step of this batch size takes from the device, in bytes: what was measured, or no less than that
        between two measured sizes. For larger ones it is an estimate where the rise was steady, else an upper bound."""
        if batch_size < 1:
            raise ValueError(f"a batch of {batch_size}: it has to be at least 1")
        points = _points(self.trials)
        above = next((point for point in points if point.size >= batch_size), None)
        if above is None:
            return max(Rise(self.fixed, self.per_sample, self.power, self.error).at(batch_size), *_peaks(points))
        below = [point for point in points if point.size <= batch_size]
        # Less than the smallest takes no more than that.
        if above.size == batch_size or not below:
            return above.peak
        return round(below[-1].peak + rise.slope(below[-1], above) * (batch_size - below[-1].size))

    def lease_for(self, batch_size: int, margin: float = 0.1) -> int:
        """What to ask the broker for, in bytes: the peak with a share of it as margin and the error, in whole units of
        2 MiB. The context of the process does not count: the broker sets it aside by itself."""
        return rounded_up(self._needed(batch_size, margin))

    def largest_batch(self, budget: int, margin: float = 0.1) -> int:
        """How many samples fit so many bytes with this margin; 0 where not even one does.

        Raises `ValueError` where the steps took the same with each batch size.
        """
        if self.per_sample <= 0:
            raise ValueError("what a sample adds is not known: the steps took the same with each batch size")
        return largest(lambda batch: self._needed(batch, margin) <= budget, 1, _MOST) or 0

    def command(self, batch_size: int, margin: float = 0.1) -> str:
        """How to start a job of this batch size."""
        return f"gpulease run -m {argument(self.lease_for(batch_size, margin))} -- python ..."

    def __str__(self) -> str:
        of = {1: "", 2: " times the batch"}.get(self.power, f" times the batch to the power of {self.power - 1}")
        says = f"{text(max(0, self.fixed))} for the model and {text(self.per_sample)}{of} for each sample"
        sizes = ", ".join(str(point.size) for point in _points(self.trials))
        if self.settled:
            return f"{says} (measured with {sizes} samples, within {self.error:.0%})"
        last = self.trials[-1]
        why = f"{last.batch_size} do not fit" if self.limited_by == "memory" else "more were not allowed"
        return f"at most {says} (measured with {sizes} samples; {why}, and the rise was not steady yet)"

    def _needed(self, batch_size: int, margin: float) -> float:
        # One measured peak may be below that of a smaller batch by chance; what a job needs does not fall.
        smaller = [point for point in _points(self.trials) if point.size <= batch_size]
        return max(self.peak(batch_size), *_peaks(smaller)) * (1 + margin + self.error)


def estimate(
    step: Step,
    batch_sizes: Sequence[int] = (1, 2, 4),
    *,
    up_to: Optional[int] = None,
    within: Within = "reserve",
    budget: Optional[int] = None,
    repeat: int = 2,
    memory: Optional[Memory] = None,
    reset: Optional[Callable[[], object]] = None,
    on_trial: Optional[Callable[[Trial], object]] = None,
) -> Estimate:
    """Measures whole training steps with small batches, and says what a larger one will take.

    The given sizes are tried, then the largest is doubled until memory rises steadily, the next one does not fit, or
    `up_to` is reached (64 times the largest given one, where nobody says): small batches alone do not tell, since what
    an optimizer takes for a moment hides what the samples take.

    `step(batch_size)`, `repeat`, `reset`, `on_trial`, `within` and `budget` (in bytes) are as for `find_batch_size`, but
    that without a lease and a `budget` the device's own limit is the only one.

    Raises `NothingFits` where not even the smallest size does, and `NeedsPyTorch` where no `memory` is given and there is
    no PyTorch.
    """
    sizes = sorted(set(batch_sizes))
    if not sizes or sizes[0] < 1:
        raise ValueError("batch_sizes are one or more numbers, each at least 1")
    end = sizes[-1] * _TIMES if up_to is None else up_to
    if end < sizes[-1] or repeat < 1:
        raise ValueError("up_to is at least the largest of batch_sizes, and repeat at least 1")
    memory = memory_or_default(memory, "estimate")
    most = allowed(memory, within, budget, margin=0.0) if budget is not None or lease() is not None else None
    clear(memory)
    before = memory.allocated()
    trials: list[Trial] = []

    def fits(size: int) -> bool:
        trial = attempt(memory, step, size, repeat=repeat, most=most, reset=reset)
        trials.append(trial)
        if on_trial is not None:
            on_trial(trial)
        return trial.fits

    limited_by = _measure(fits, sizes, end, lambda: rise.is_steady(_points(trials), _floor(trials, before)))
    points = _points(trials)
    if not points:
        raise NothingFits(f"not even a batch of {sizes[0]} fits: {trials[0].why}", tuple(trials))
    goes_on = rise.steady(points) if limited_by == "settled" else rise.bound(points, _floor(trials, before))
    trials.sort(key=lambda trial: trial.batch_size)
    return Estimate(goes_on.fixed, goes_on.each, goes_on.error, tuple(trials), limited_by, goes_on.power)


def _measure(
    fits: Callable[[int], bool], sizes: Sequence[int], end: int, is_steady: Callable[[], bool]
) -> Literal["settled", "memory", "up_to"]:
    """Tries the sizes, then larger ones; what ended it. Beyond one that does not fit none is tried."""
    best, beyond = 0, end + 1
    for size in sizes:
        if not fits(size):
            beyond = size
            break
        best = size
    while best and not is_steady():
        if best == end:
            return "up_to"
        following = min(best * 2, end)
        if following >= beyond or not fits(following):
            return "memory"
        best = following
    return "settled" if best else "memory"


def _points(trials: Sequence[Trial]) -> list[Point]:
    return sorted(Point(trial.batch_size, trial.peak.reserved) for trial in trials if trial.fits)


def _peaks(points: Sequence[Point]) -> list[int]:
    return [point.peak for point in points] or [0]


def _floor(trials: Sequence[Trial], before: int) -> int:
    """What is in use however small the batch is, given what was before the first step.

    Steps that left nothing more may have found gradients there and dropped them; these are no larger than the weights.
    """
    return before if trials[0].left > 0 else before // 2

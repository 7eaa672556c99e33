"""What a job will need, before it asks for a lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional

from .batch_size import NothingFits
from .memory import Memory, memory_or_default
from .sizes import argument, rounded_up, text
from .trial import Step, Trial, attempt


@dataclass(frozen=True)
class Estimate:
    """A line through measured peaks: so much for the model, so much for each sample. Sizes are bytes."""

    #: What does not depend on the batch: weights, gradients, optimizer state, workspaces.
    fixed: float
    #: What each sample adds; None where only one batch size was measured.
    per_sample: Optional[float]
    #: How far a measured peak is from the line at most, as a share of the peak.
    error: float
    #: What was measured, in order.
    trials: tuple[Trial, ...]

    def peak(self, batch_size: int) -> int:
        """The most that a step of this batch size takes from the device.

        Raises `ValueError` where it was not measured and only one other was.
        """
        measured = [trial.peak.reserved for trial in self.trials if trial.fits and trial.batch_size == batch_size]
        if measured:
            return max(measured)
        if self.per_sample is None:
            raise ValueError("one measured batch size says nothing about another: give two or more to estimate()")
        return round(self.fixed + self.per_sample * batch_size)

    def lease_for(self, batch_size: int, margin: float = 0.1) -> int:
        """What to ask the broker for: the peak and a margin, in whole units of 2 MiB. The context of the process does
        not count: the broker sets it aside by itself."""
        return rounded_up(self.peak(batch_size) * (1 + margin + self.error))

    def largest_batch(self, budget: int, margin: float = 0.1) -> int:
        """How many samples fit so many bytes; 0 where not even one does."""
        if self.per_sample is None or self.per_sample <= 0:
            raise ValueError("what a sample adds is not known: give batch sizes that differ to estimate()")
        usable = budget / (1 + margin + self.error)
        # The next whole number is tried, too: a quotient is a hair too small as often as not.
        samples = int((usable - self.fixed) / self.per_sample) + 1
        return max(0, samples if self.fixed + self.per_sample * samples <= usable + 1 else samples - 1)

    def command(self, batch_size: int, margin: float = 0.1) -> str:
        """How to start a job of this batch size."""
        return f"gpulease run -m {argument(self.lease_for(batch_size, margin))} -- python ..."

    def __str__(self) -> str:
        each = "" if self.per_sample is None else f" and {text(self.per_sample)} for each sample"
        sizes = ", ".join(str(trial.batch_size) for trial in self.trials)
        return f"{text(self.fixed)} for the model{each} (measured with {sizes} samples, within {self.error:.0%})"


def estimate(
    step: Step,
    batch_sizes: Sequence[int] = (1, 2, 4),
    *,
    repeat: int = 2,
    memory: Optional[Memory] = None,
    reset: Optional[Callable[[], object]] = None,
) -> Estimate:
    """Measures whole training steps with small batches, and says what a larger one will take.

    `step(batch_size)`, `repeat` and `reset` are as for `find_batch_size`. Sizes that run out of memory are left out.

    Raises `NothingFits` where all of them do, and `NeedsPyTorch` where no `memory` is given and there is no PyTorch.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ValueError("batch_sizes are one or more numbers, each at least 1")
    memory = memory_or_default(memory, "estimate")
    # What a first step allocates for good would else look like a part of the smallest batch.
    trials = [attempt(memory, step, size, repeat=repeat, reset=reset) for size in sorted(set(batch_sizes))]
    points = [(trial.batch_size, trial.peak.reserved) for trial in trials if trial.fits]
    if not points:
        raise NothingFits(f"not even a batch of {trials[0].batch_size} fits: {trials[0].why}", tuple(trials))
    fixed, per_sample = line(points)
    off = (abs(fixed + (per_sample or 0) * size - peak) / peak for size, peak in points if peak)
    return Estimate(fixed, per_sample, max(off, default=0.0), tuple(trials))


def line(points: Sequence[tuple[int, int]]) -> tuple[float, Optional[float]]:
    """Where the straight line of least squares begins, and how much it rises; through one point it does not rise."""
    count = len(points)
    middle = sum(x for x, _ in points) / count
    height = sum(y for _, y in points) / count
    spread = sum((x - middle) ** 2 for x, _ in points)
    if not spread:
        return height, None
    rise = sum((x - middle) * (y - height) for x, y in points) / spread
    return height - rise * middle, rise

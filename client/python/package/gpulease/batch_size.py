"""The largest batch that fits the lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Optional, get_args

from .leases import GpuleaseError, Lease, NotInALease, lease, why_no_lease
from .memory import Memory, memory_or_default
from .sizes import text
from .trial import Step, Trial, attempt

#: Which of the lease's two sizes a batch has to fit.
Within = Literal["reserve", "limit"]


class NothingFits(GpuleaseError):
    """Not even the smallest batch fits."""

    def __init__(self, message: str, trials: tuple[Trial, ...]) -> None:
        super().__init__(message)
        self.trials = trials


@dataclass(frozen=True)
class Accumulation:
    """A batch in several pieces, whose gradients are summed before the optimizer's step.

    With a loss that is a mean over the samples, multiply the loss of each piece by its weight before `backward()`.
    """

    #: How many samples each piece has; together the batch.
    sizes: tuple[int, ...]

    @property
    def effective(self) -> int:
        """The whole batch."""
        return sum(self.sizes)

    @property
    def steps(self) -> int:
        """How many pieces there are: forward and backward passes for one step of the optimizer."""
        return len(self.sizes)

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of each piece in the batch; together 1."""
        return tuple(size / self.effective for size in self.sizes)


@dataclass(frozen=True)
class BatchSize:
    """What the search for a batch size found. Sizes are bytes."""

    #: The largest that fits.
    batch_size: int
    #: The framework's memory had to stay within this.
    budget: int
    #: The most that the found batch took from the device.
    peak: int
    #: "memory" where a larger one did not fit, "high" where the search went no further.
    limited_by: Literal["memory", "high"]
    #: All that was tried, in order.
    trials: tuple[Trial, ...]

    def accumulation(self, effective: int) -> Accumulation:
        """The fewest pieces that fit and together keep a batch of `effective` samples; as equal as can be."""
        return accumulation(effective, self.batch_size)

    @property
    def left_by_failed(self) -> int:
        """The most that a trial that did not fit left in live tensors; what stays grows no further in a sound program."""
        return max((trial.left for trial in self.trials if not trial.fits), default=0)

    def __str__(self) -> str:
        limit = "more does not fit" if self.limited_by == "memory" else "as many as were asked for"
        return (
            f"batch size {self.batch_size} ({limit}): {text(self.peak)} of {text(self.budget)}, "
            f"{len(self.trials)} sizes tried"
        )


def accumulation(effective: int, largest: int) -> Accumulation:
    """The fewest pieces of at most `largest` samples that together have `effective`; as equal as can be."""
    if effective < 1 or largest < 1:
        raise ValueError(f"a batch of {effective} in pieces of {largest}: both have to be at least 1")
    steps = -(-effective // largest)
    size, more = divmod(effective, steps)
    return Accumulation((size + 1,) * more + (size,) * (steps - more))


def find_batch_size(
    step: Step,
    low: int = 1,
    high: int = 1 << 16,
    *,
    multiple_of: int = 1,
    repeat: int = 2,
    margin: float = 0.05,
    within: Within = "reserve",
    budget: Optional[int] = None,
    memory: Optional[Memory] = None,
    reset: Optional[Callable[[], object]] = None,
    on_trial: Optional[Callable[[Trial], object]] = None,
) -> BatchSize:
    """Searches the largest batch size from `low` to `high` whose training steps fit, by doubling and then bisection.

    `step(batch_size)` is one whole step: forward, backward, optimizer. It runs `repeat` times with each size, because
    optimizers take their state in the first step and the peak is in the second. It changes the model it works on: search
    with a copy, or before the weights are loaded. `reset()` is called after each size and may undo what a step leaves
    behind, such as gradients.

    Neighbours are not harmed: while a size is tried the framework is held to what is set aside for this lease (with
    `within="limit"`: to the lease's limit; with `budget`: to so many bytes), less a `margin` for what a long run
    fragments and less what the lease holds outside of the framework. Memory that runs out in forward, backward or
    optimizer only means that the size does not fit; what the failed steps left is freed. Any other error goes through.

    A search may take minutes: `on_trial=print` tells each size as it is tried.

    Raises `NothingFits` where not even `low` does, `NotInALease` outside of a lease without a `budget`, and
    `NeedsPyTorch` where no `memory` is given and there is no PyTorch.
    """
    if not 1 <= low <= high or multiple_of < 1 or repeat < 1 or not 0 <= margin < 1:
        raise ValueError("low is at least 1 and at most high, multiple_of and repeat at least 1, and margin below 1")
    low, high = -(-low // multiple_of), high // multiple_of
    if low > high:
        raise ValueError(f"no multiple of {multiple_of} lies between low and high")
    memory = memory_or_default(memory, "find_batch_size")
    most = allowed(memory, within, budget, margin)
    trials: list[Trial] = []

    def fits(units: int) -> bool:
        trial = attempt(memory, step, units * multiple_of, repeat=repeat, most=most, reset=reset)
        trials.append(trial)
        if on_trial is not None:
            on_trial(trial)
        return trial.fits

    best = largest(fits, low, high)
    if best is None:
        raise NothingFits(
            f"not even a batch of {trials[0].batch_size} fits {text(most)}: {trials[0].why}", tuple(trials)
        )
    found = best * multiple_of
    peak = max(trial.peak.reserved for trial in trials if trial.batch_size == found)
    return BatchSize(found, most, peak, "high" if best == high else "memory", tuple(trials))


def largest(fits: Callable[[int], bool], low: int, high: int) -> Optional[int]:
    """The largest number from `low` to `high` that fits, where all smaller ones do too; None where `low` does not.

    Each number is tried at most once: doubled until one does not fit, then the gap is halved.
    """
    if not fits(low):
        return None
    best, beyond = low, high + 1
    while best < high:
        doubled = min(best * 2, high)
        if not fits(doubled):
            beyond = doubled
            break
        best = doubled
    while beyond - best > 1:
        middle = (best + beyond) // 2
        if fits(middle):
            best = middle
        else:
            beyond = middle
    return best


def allowed(memory: Memory, within: Within, budget: Optional[int], margin: float) -> int:
    """How many bytes the framework may take from its device."""
    if within not in get_args(Within):
        raise ValueError(f'within is "reserve" or "limit", not {within!r}')
    if budget is not None:
        return int(budget * (1 - margin))
    ours = lease()
    if ours is None:
        raise NotInALease(f"{why_no_lease()}; or give the bytes that may be used as budget=")
    size = ours.reserve if within == "reserve" else ours.limit
    return max(0, int((size - held_by_others(ours, memory)) * (1 - margin)))


def held_by_others(ours: Lease, memory: Memory) -> int:
    """What the lease holds outside of the framework's allocator: other libraries, other processes of the job.

    Known where the lease is on one device; 0 where it is on several, since the broker's figure is a sum.
    """
    return max(0, ours.held - memory.reserved()) if len(ours.devices) == 1 else 0

"""Memory that grows from step to step though the work is the same."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Optional, Protocol, cast

from .memory import Memory, memory_or_default
from .sizes import text

#: Growth as regular as this is taken for one and the same leak: gaps between its steps differ by no more.
_GAPS_DIFFER = 3
#: Growth has to be more than so many times what memory usually goes up and down by,
_ABOVE_USUAL = 2
#: which is what it fell by so often; a fall or two may have been something else.
_FALLS = 3
#: How many levels are remembered; a leak is found long before.
_LEVELS = 4096
#: How many kinds of tensors are named.
_NAMED = 3


class LeakWarning(UserWarning):
    """Memory grows from step to step."""


@dataclass(frozen=True)
class Leak:
    """Memory that grows at constant work. Steps count from 1."""

    #: The first step after which more was left than before.
    since: int
    #: The step at which it was noticed.
    noticed: int
    #: How much it grew between the two, in bytes.
    grown: int
    #: How much that is for each step, in bytes.
    per_step: float
    #: Kinds of tensors that became more while it was watched, with how many came; empty where nobody can tell.
    kinds: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        grows = f"memory grows since step {self.since}: {text(self.grown)} until step {self.noticed}"
        said = f"{grows}, {text(self.per_step)} a step, while the work is the same"
        if not self.kinds:
            return said
        named = "; ".join(f"{count} more of {kind}" for kind, count in self.kinds)
        hint = " (keep loss.item() or loss.detach() instead of the loss)" if "graph" in named else ""
        return f"{said}. Since it was suspected there are {named}{hint}"


class _Counts(Protocol):
    def census(self) -> Counter[str]: ...


@dataclass
class _Level:
    """Memory was never below `bytes` again after `last`, the last step that ended with so little."""

    last: int
    bytes: int


@dataclass
class LeakWatch:
    """Call `step()` at the end of each training step; memory that grows at constant work is told once, as a `LeakWarning`,
    with the step since which it grows.

        watch = gpulease.LeakWatch()
        for batch in batches:
            train(batch)
            watch.step()

    A level that is reached and kept is no leak, nor are peaks that go away again: told is what grew at least `patience`
    times at regular distances, by `tolerance` bytes or more together, and by more than it has gone up and down by before.
    """

    memory: Optional[Memory] = None
    patience: int = 16
    tolerance: int = 1 << 20
    #: Called with the leak instead of the warning.
    on_leak: Optional[Callable[[Leak], object]] = None
    #: The leak that was told; None as long as there is none.
    leak: Optional[Leak] = None
    #: How many steps there were.
    steps: int = 0
    _levels: list[_Level] = field(default_factory=list, repr=False)
    #: The largest falls so far, the largest first.
    _falls: list[int] = field(default_factory=list, repr=False)
    _before: Optional[Counter[str]] = field(default=None, repr=False)
    #: No need to look before this step.
    _look_at: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        self.memory = memory_or_default(self.memory, "LeakWatch")

    def step(self) -> Optional[Leak]:
        """Looks at the memory at the end of a step. Returns the leak at the step that it is told, else None."""
        assert self.memory is not None, "it is set from the beginning"
        self.steps += 1
        self._note(self.memory.allocated())
        if self.leak is not None or self.steps < self._look_at:
            return None
        grown = self._growing()
        # Looking takes as long as the growth is: what is slow is looked at less often.
        self._look_at = self.steps + 1 + len(grown) // 16
        if len(grown) < max(2, self.patience // 2):
            self._before = None
            return None
        if self._before is None:
            self._before = self._census()
        if len(grown) <= self.patience or not self._matters(grown):
            return None
        return self._tell(grown)

    def _note(self, size: int) -> None:
        """Keeps the levels below which memory never fell again, each higher than the one before."""
        if self._levels and self._levels[-1].bytes > size:
            self._falls = sorted([*self._falls, self._levels[-1].bytes - size], reverse=True)[:_FALLS]
        while self._levels and self._levels[-1].bytes >= size:
            self._levels.pop()
        self._levels.append(_Level(self.steps, size))
        del self._levels[:-_LEVELS]

    def _growing(self) -> list[_Level]:
        """The levels of the growth that is still going on: regular steps up, back to the one that it began from."""
        levels = self._levels
        gaps = [after.last - before.last for before, after in zip(levels, levels[1:])]
        if len(gaps) < 2:
            return []
        # The last level is not left yet.
        gaps.pop()
        usual = median(gaps[-max(2, self.patience) :])
        first = len(gaps)
        while first > 0 and usual / _GAPS_DIFFER <= gaps[first - 1] <= usual * _GAPS_DIFFER:
            first -= 1
        return levels[first:]

    def _matters(self, grown: list[_Level]) -> bool:
        """More than is usual: what grew and went away again before may do so now."""
        growth = grown[-1].bytes - grown[0].bytes
        usual = self._falls[-1] if len(self._falls) == _FALLS else 0
        return growth >= self.tolerance and growth > _ABOVE_USUAL * usual

    def _tell(self, grown: list[_Level]) -> Leak:
        first, last = grown[0], grown[-1]
        growth = last.bytes - first.bytes
        since = first.last + 1
        leak = Leak(since, self.steps, growth, growth / (self.steps - first.last), self._kinds())
        self.leak = leak
        if self.on_leak is not None:
            self.on_leak(leak)
        else:
            warnings.warn(str(leak), LeakWarning, stacklevel=3)
        return leak

    def _census(self) -> Optional[Counter[str]]:
        return cast(_Counts, self.memory).census() if hasattr(self.memory, "census") else None

    def _kinds(self) -> tuple[tuple[str, int], ...]:
        now = self._census()
        if now is None or self._before is None:
            return ()
        return tuple((now - self._before).most_common(_NAMED))

"""Running a training step to see what it takes, and clearing up where it does not fit."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Optional

from .memory import Memory, Peak
from .sizes import text

#: In the names of installed libraries' files. What was compiled from Cython names its source alone.
_OF_LIBRARIES = ("site-packages", "dist-packages", ".pyx")

#: A step of training with this many samples.
Step = Callable[[int], object]


@dataclass(frozen=True)
class Trial:
    """What came of some steps with one batch size. Sizes are bytes."""

    batch_size: int
    fits: bool
    #: Of the framework's memory, while the steps ran.
    peak: Peak
    #: What live tensors took afterwards, beyond what they took before: optimizer state, gradients, leaks.
    left: int
    seconds: float
    #: Why it does not fit; None where it does.
    why: Optional[str]
    #: Where in the program memory ran out; None where it did not.
    where: Optional[str]

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"batch {self.batch_size}: " + (f"{text(self.peak.reserved)}" if self.fits else f"{self.why}{at}")


def attempt(
    memory: Memory,
    step: Step,
    batch_size: int,
    *,
    repeat: int = 1,
    most: Optional[int] = None,
    reset: Optional[Callable[[], object]] = None,
) -> Trial:
    """Runs `step(batch_size)` so often, within `most` bytes of the framework's memory, and clears up. An error that is not
    about memory goes through as it is."""
    clear(memory)
    before, began = memory.allocated(), time.monotonic()
    memory.reset_peak()
    why = where = None
    try:
        with memory.capped(most) if most is not None else nullcontext():
            for _ in range(repeat):
                step(batch_size)
    except Exception as error:
        if not memory.is_out_of_memory(error):
            raise
        why, where = _first_line(error), _place(error)
        forget(error)
    peak = memory.peak()
    if why is None and most is not None and peak.reserved > most:
        why = f"it took {text(peak.reserved)}, and {text(most)} are allowed"
    if reset is not None:
        reset()
    clear(memory)
    return Trial(
        batch_size=batch_size,
        fits=why is None,
        peak=peak,
        left=memory.allocated() - before,
        seconds=time.monotonic() - began,
        why=why,
        where=where,
    )


def clear(memory: Memory) -> None:
    """Tensors in reference cycles go, then what is cached."""
    gc.collect()
    memory.empty_cache()


def forget(error: Optional[BaseException]) -> None:
    """Lets go of what the frames that an error came through hold: the tensors of a failed step live in them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if error.__traceback__ is not None:
            traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


def _place(error: BaseException) -> Optional[str]:
    """The innermost lines of the program itself, not of installed libraries, from outside to inside."""
    lines = traceback.extract_tb(error.__traceback__)[1:]
    own = [line for line in lines if not any(part in line.filename for part in _OF_LIBRARIES)]
    chosen = (own or lines)[-3:]
    return " > ".join(f"{line.filename}:{line.lineno} in {line.name}" for line in chosen) or None

"""An out-of-memory error in words: what was wanted, who holds the memory, and what would help by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from . import _native, sizes
from .leases import Lease
from .memory import Memory, is_out_of_memory
from .model_cost import ModelCost, activations, model_cost
from .report import Framework, MemoryReport, memory_report
from .sizes import text
from .ways import Ways, ways_of

#: How many of the others are named.
_NAMED = 5
#: What stands before the size that was asked for: in errors of PyTorch, of its cudaMallocAsync backend, of JAX and CuPy.
_WANTED = ("ried to allocate", "Requested", "rying to allocate", "emory allocating")


@dataclass(frozen=True)
class Option:
    """Something that would help."""

    what: str
    #: How it is done.
    how: str
    #: In bytes; None where it can't be computed from what is known.
    saves: Optional[int]
    #: Whether it saves that much at most.
    at_most: bool = False

    def __str__(self) -> str:
        if self.saves is None:
            return f"{self.what}. {self.how}"
        at_most = "up to " if self.at_most else ""
        return f"{self.what}: {at_most}{text(self.saves)}. {self.how}"


@dataclass(frozen=True)
class OutOfMemory:
    """What is known of an error at the moment that it is explained. Sizes are bytes."""

    #: What the failed allocation asked for; None where the error does not say.
    wanted: Optional[int]
    #: What may be used: the lease's limit, or what the error calls the device's total; None where neither is known.
    budget: Optional[int]
    #: How much of that was left.
    left: Optional[int]
    report: MemoryReport
    #: The surest first.
    options: tuple[Option, ...]
    #: What the broker said to the pool's last ask; None where nothing.
    refusal: Optional[str]

    @property
    def short(self) -> Optional[int]:
        """How much was missing; None where it can't be told."""
        return None if self.wanted is None or self.left is None else max(0, self.wanted - self.left)

    def __str__(self) -> str:
        rows = [self._headline(), "", str(self.report)]
        rows += [f"The broker's answer: {self.refusal}"] if self.refusal else []
        rows += self._holders()
        rows += ["What would help:"]
        rows += [f"  {number}. {option}" for number, option in enumerate(self.options, 1)]
        return "\n".join(rows)

    def _headline(self) -> str:
        wanted = "An allocation failed" if self.wanted is None else f"{text(self.wanted)} wanted"
        if self.budget is None or self.left is None:
            return f"Out of GPU memory: {wanted}."
        ours = self.report.lease
        whose = "of the device" if ours is None else f"of lease L{ours.id}"
        return f"Out of GPU memory: {wanted}, and {text(self.left)} of the {text(self.budget)} {whose} are left."

    def _holders(self) -> list[str]:
        ours = self.report.lease
        if ours is None or not ours.neighbours:
            return []
        more = len(ours.neighbours) - _NAMED
        rows = ["Others on the same card:", *(f"  {each}" for each in ours.neighbours[:_NAMED])]
        return [*rows, f"  and {more} more"] if more > 0 else rows


def explain_out_of_memory(
    error: BaseException,
    *,
    model: Any = None,
    optimizer: Any = None,
    batch_size: Optional[int] = None,
    memory: Optional[Memory] = None,
) -> OutOfMemory:
    """Explains an out-of-memory error of a GPU; print what it returns.

    With the `model` and its `optimizer` it can tell apart what the model takes and what a step keeps for its backward pass,
    and so compute what a smaller batch, half precision and activation checkpointing would save; with `batch_size` also
    which batch would fit. Call it where the error is caught, before anything is freed: it looks at the memory as it is.

    Raises `ValueError` where the error is about something else.
    """
    is_one = memory.is_out_of_memory if memory is not None else is_out_of_memory
    if not is_one(error):
        raise ValueError(f"this is no out-of-memory error of a GPU: {type(error).__name__}: {error}")
    report = memory_report(memory)
    said = _told(error)
    wanted = sizes.read(said, *_WANTED)
    budget, left = _budget(report, said)
    cost = None if model is None else model_cost(model, optimizer)
    known = _Known(report.lease, report.framework, cost, batch_size, wanted, left, ways_of(error))
    return OutOfMemory(wanted, budget, left, report, tuple(known.options()), _native.pool_state()["trouble"])


def _told(error: Optional[BaseException]) -> str:
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__
    return "\n".join(said)


def _budget(report: MemoryReport, said: str) -> tuple[Optional[int], Optional[int]]:
    ours = report.lease
    if ours is not None and len(ours.devices) == 1:
        cached = report.framework.cached - report.framework.fragmented if report.framework else 0
        return ours.limit, ours.room + max(0, cached)
    return sizes.read(said, "total capacity of", "Device limit"), sizes.read(
        said, "of which", "Free (according to CUDA)"
    )


@dataclass(frozen=True)
class _Known:
    """What the options are computed from."""

    lease: Optional[Lease]
    framework: Optional[Framework]
    cost: Optional[ModelCost]
    batch_size: Optional[int]
    wanted: Optional[int]
    left: Optional[int]
    ways: Ways

    def options(self) -> list[Option]:
        """Those that apply, what can be done at once first."""
        found = [
            self._cache(),
            self._share(),
            self._segments(),
            self._batch(),
            self._precision(),
            self._checkpointing(),
            self._lease(),
        ]
        return [option for option in found if option is not None]

    @property
    def kept(self) -> Optional[int]:
        """What the step keeps for its backward pass."""
        return activations(self.cost, self.framework.peak.allocated) if self.framework else None

    def _cache(self) -> Optional[Option]:
        if self.framework is None:
            return Option("Clear caches", self.ways.caches, None)
        saves = max(0, self.framework.cached - self.framework.fragmented)
        if not saves:
            return None
        how = "torch.cuda.empty_cache(); helps other libraries of the job, since PyTorch uses its own cache before it fails."
        return Option("Clear caches", how, saves)

    def _share(self) -> Optional[Option]:
        return None if self.ways.share is None else Option("More of the lease", self.ways.share, None)

    def _segments(self) -> Optional[Option]:
        lost = self.framework.fragmented if self.framework else 0
        # Less is in every run.
        if lost < max(self.wanted or 0, 64 << 20):
            return None
        how = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment lets PyTorch join free pieces."
        return Option("Less fragmentation", how, lost, at_most=True)

    def _batch(self) -> Option:
        what, how = self.ways.smaller, self.ways.batch
        kept, batch = self.kept, self.batch_size
        if kept is None or batch is None or batch < 2:
            return Option(what, how, None if kept is None else kept // 2)
        fitting = self._fitting(kept, batch)
        if fitting is None:
            return Option(f"{what} (half: {batch // 2})", how, kept * (batch - batch // 2) // batch)
        return Option(f"{what} (at most {fitting} instead of {batch})", how, kept * (batch - fitting) // batch)

    def _fitting(self, kept: int, batch: int) -> Optional[int]:
        """A batch that leaves room for what was missing, at most half; None where it can't be told."""
        if self.wanted is None or self.left is None or not kept:
            return None
        # What failed would have been a part of the step, too.
        whole = kept + self.wanted
        fitting = int(batch * (kept + self.left) / whole)
        return max(1, min(fitting, batch - 1))

    def _precision(self) -> Optional[Option]:
        what = "Mixed precision"
        how = self.ways.precision
        if how is None or (self.cost is not None and self.cost.width <= 2):
            return None
        return Option(what, how, None if self.kept is None else self.kept // 2, at_most=True)

    def _checkpointing(self) -> Optional[Option]:
        how, kept = self.ways.checkpointing, self.kept
        if how is None:
            return None
        if kept is None or self.cost is None or self.cost.blocks < 2:
            return Option("Activation checkpointing", how, None)
        blocks = self.cost.blocks
        what = f"Activation checkpointing of {blocks} blocks"
        return Option(what, how, kept * (blocks - 1) // blocks, at_most=True)

    def _lease(self) -> Option:
        ours = self.lease
        if ours is None:
            return Option(
                "A lease", "gpulease run -m SIZE -- python ... sets memory aside that nobody else can take.", None
            )
        free = min((device.free for device in ours.devices), default=0)
        capacity = min((device.capacity for device in ours.devices), default=0)
        need = max(ours.limit + max(0, (self.wanted or 0) - (self.left or 0)), ours.limit + sizes.GRANULARITY)
        if need > capacity:
            how = f"Not enough: {text(capacity)} of the card are leased in all, and this takes {text(need)}."
            return Option("A larger lease", how, max(0, capacity - ours.limit), at_most=True)
        how = f"gpulease run -m {sizes.argument(need)} -- python ...; {text(free)} of the card are neither leased nor promised now."
        return Option("A larger lease", how, free, at_most=True)

"""The framework's view of its memory and the broker's, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .leases import GpuleaseError, Lease, lease, why_no_lease
from .memory import Memory, Peak, TorchMemory, loaded_torch
from .sizes import text

_WIDTH = 64


@dataclass(frozen=True)
class Framework:
    """A framework's figures at one moment, in bytes."""

    name: str
    allocated: int
    reserved: int
    fragmented: int
    peak: Peak

    @property
    def cached(self) -> int:
        """Taken from the device and not in live tensors; emptying the cache gives it back, but for the fragmented."""
        return self.reserved - self.allocated


@dataclass(frozen=True)
class MemoryReport:
    """What was so at one moment; `str()` of it is a table."""

    #: None outside of a lease, and where the broker could not be asked.
    lease: Optional[Lease]
    #: Why there is no lease here.
    why_no_lease: Optional[str]
    #: None where the program uses no framework that is known here.
    framework: Optional[Framework]

    @property
    def elsewhere(self) -> Optional[int]:
        """What the lease holds outside of the framework's allocator; None where one of the two is not known, or the lease is
        on several devices."""
        if self.lease is None or self.framework is None or len(self.lease.devices) != 1:
            return None
        return max(0, self.lease.held - self.framework.reserved)

    def __str__(self) -> str:
        rows = ["=" * _WIDTH, *self._broker(), "-" * _WIDTH, *self._framework(), "=" * _WIDTH]
        return "\n".join(rows)

    def _broker(self) -> list[str]:
        ours = self.lease
        if ours is None:
            return [f"The broker's view: {self.why_no_lease}"]
        several = f" (each of {len(ours.devices)} devices)" if len(ours.devices) > 1 else ""
        rows = [
            f'The broker\'s view: lease L{ours.id} "{ours.name}", {ours.state}',
            *(f"  on {device}" for device in ours.devices),
            _row(f"set aside{several}", ours.reserve),
            _row(f"limit{several}", ours.limit),
            _row("held", ours.held, ours.held_peak),
        ]
        rows += [_row("  of that swapped out", ours.away)] if ours.away else []
        rows += [_row("given back, not proven free yet", ours.draining)] if ours.draining else []
        rows += [_row("context and libraries, beside that", ours.overhead)]
        if ours.overhead_here is not None and ours.overhead_here != ours.overhead:
            rows += [_row("  of that this process", ours.overhead_here)]
        rows += [_row("room up to the limit", ours.room)]
        free = sum(device.free for device in ours.devices)
        return [*rows, _row("neither leased nor promised on the card", free)]

    def _framework(self) -> list[str]:
        own = self.framework
        if own is None:
            return ["The program's view: no PyTorch that uses a GPU in this process"]
        rows = [
            f"{own.name}'s view",
            _row("allocated", own.allocated, own.peak.allocated),
            _row("cached", own.cached),
            _row("  of that fragmented", own.fragmented),
            _row("taken from the device", own.reserved, own.peak.reserved),
        ]
        return rows if self.elsewhere is None else [*rows, _row("held by the lease and not this", self.elsewhere)]


def memory_report(memory: Optional[Memory] = None) -> MemoryReport:
    """What this process's memory is made of, as its framework and as the broker see it; print it. Works outside of a lease,
    without a broker and without PyTorch, and says what is missing.

    `memory` names another allocator than PyTorch's on its current device.
    """
    try:
        ours, why = lease(), why_no_lease()
    except GpuleaseError as error:
        ours, why = None, str(error)
    if memory is None and loaded_torch() is not None:
        memory = TorchMemory()
    return MemoryReport(ours, why, _figures(memory) if memory is not None else None)


def _figures(memory: Memory) -> Framework:
    return Framework(memory.name, memory.allocated(), memory.reserved(), memory.fragmented(), memory.peak())


def _row(what: str, size: int, peak: Optional[int] = None) -> str:
    at_most = "" if peak is None else f"   peak {text(peak):>10}"
    return f"  {what:<42}{text(size):>10}{at_most}".rstrip()

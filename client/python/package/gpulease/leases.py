"""Which lease this process is in, and what the broker says of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from . import _native
from ._native import BrokerUnreachable, GpuleaseError, NotInALease, Refused
from .sizes import text

__all__ = [
    "BrokerUnreachable",
    "Device",
    "GpuleaseError",
    "Lease",
    "LeaseEnded",
    "Neighbour",
    "NotInALease",
    "Refused",
    "lease",
    "why_no_lease",
]

_VARIABLE = "GPULEASE_LEASE"


class LeaseEnded(GpuleaseError):
    """The lease of this process is not in the broker's books any more."""


@dataclass(frozen=True)
class Device:
    """A device of the lease. Sizes are bytes."""

    #: The broker's number of it, not CUDA's.
    index: int
    #: "cuda", or "host" for host memory that stands in for a GPU.
    kind: str
    uuid: str
    name: str
    #: What the broker leases of it.
    capacity: int
    #: Of that: neither leased nor promised.
    free: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.index} ({self.name})"


@dataclass(frozen=True)
class Neighbour:
    """Another lease on one of the same devices. Sizes are bytes over all its devices."""

    id: int
    name: str
    user: str
    pid: int
    program: str
    state: str
    held: int
    #: What its processes' contexts and libraries take.
    overhead: int
    #: On each device.
    reserve: int
    idle: bool

    def __str__(self) -> str:
        idle = ", idle" if self.idle else ""
        return f'L{self.id} "{self.name}" of {self.user}: {text(self.held + self.overhead)} ({self.state}{idle})'


@dataclass(frozen=True)
class Lease:
    """The lease of this process as the broker had it at one moment. Sizes are bytes."""

    id: int
    name: str
    user: str
    #: active, draining, suspending, suspended or resuming.
    state: str
    devices: tuple[Device, ...]
    #: Set aside on each device: allocations within it are never refused for want of room.
    reserve: int
    #: How far it may grow on each device, while there is room.
    limit: int
    #: In segments, over all devices.
    held: int
    held_peak: int
    #: What its processes' contexts and libraries take beside that.
    overhead: int
    #: The share of this process in the overhead; None where the broker does not list it.
    overhead_here: Optional[int]
    #: Whether the card told that share; else it is an estimate.
    overhead_measured: bool
    #: Of what is held: swapped out, in host memory only.
    away: int
    #: Given back, and not yet proven free.
    draining: int
    #: Within a guarantee: never suspended.
    guaranteed: bool
    suspendable: bool
    #: How often it was suspended.
    suspensions: int
    age_seconds: float
    waited_seconds: float
    #: The other leases on its devices, the largest first.
    neighbours: tuple[Neighbour, ...]
    #: How many asks wait in the line.
    waiting: int

    @property
    def room(self) -> int:
        """How much it may still take, as far as its own limit goes, over all devices."""
        return max(0, self.limit * len(self.devices) - self.held)

    @property
    def room_set_aside(self) -> int:
        """How much of that is set aside for it."""
        return max(0, self.reserve * len(self.devices) - self.held)

    def why(self) -> str:
        """Why it is as it is, in the broker's words: a sentence, then details, each on a line."""
        summary, details = _native.why(self.id)
        return "\n".join([summary, *details])

    def __str__(self) -> str:
        grows = f", up to {text(self.limit)}" if self.limit > self.reserve else ""
        name = f' "{self.name}"' if self.name else ""
        where = " and ".join(str(device) for device in self.devices)
        return f"lease L{self.id}{name} on {where}: {text(self.reserve)} set aside{grows}, {text(self.held)} held"


def lease() -> Optional[Lease]:
    """The lease that this process was started in, as it is now; None outside of one (`why_no_lease` says why).

    Raises `BrokerUnreachable` where no broker answers, and `LeaseEnded` where it does not know the lease any more.
    """
    number = _number()
    if number is None:
        return None
    state = _native.state()
    ours = next((each for each in state["leases"] if each["id"] == number), None)
    if ours is None:
        raise LeaseEnded(
            f"lease L{number} of {_VARIABLE} has ended; what is mapped keeps working, and new memory needs a new `gpulease run`"
        )
    return _lease(ours, state)


def why_no_lease() -> Optional[str]:
    """Why this process is in no lease; None where it is in one."""
    if _number() is not None:
        return None
    given = os.environ.get(_VARIABLE)
    if given is None:
        return (
            f"{_VARIABLE} is not set, so this process is not part of a job; "
            "start it with `gpulease run -m 8GiB -- python ...`"
        )
    return f"{_VARIABLE} is {given!r}, which is not the number of a lease; `gpulease run` sets it, leave it alone"


def _number() -> Optional[int]:
    given = os.environ.get(_VARIABLE, "")
    return int(given) if given.isascii() and given.isdigit() else None


def _lease(ours: _native.Lease, state: _native.State) -> Lease:
    here = set(ours["devices"])
    beside = [each for each in state["leases"] if each["id"] != ours["id"] and here & set(each["devices"])]
    member = next((each for each in ours["members"] if each["pid"] == os.getpid()), None)
    return Lease(
        id=ours["id"],
        name=ours["name"],
        user=ours["user"],
        state=ours["state"],
        devices=tuple(_device(each) for each in state["devices"] if each["index"] in here),
        reserve=ours["reserve_bytes"],
        limit=ours["limit_bytes"],
        held=ours["held_bytes"],
        held_peak=ours["held_peak_bytes"],
        overhead=ours["overhead_bytes"],
        overhead_here=member["overhead_bytes"] if member else None,
        overhead_measured=bool(member and member["overhead_measured"]),
        away=ours["away_bytes"],
        draining=ours["draining_bytes"],
        guaranteed=ours["guaranteed"],
        suspendable=ours["suspendable"],
        suspensions=ours["suspensions"],
        age_seconds=ours["age_seconds"],
        waited_seconds=ours["waited_seconds"],
        neighbours=tuple(sorted(map(_neighbour, beside), key=lambda each: -each.held)),
        waiting=len(state["waiting"]),
    )


def _device(each: _native.Device) -> Device:
    return Device(each["index"], each["kind"], each["uuid"], each["name"], each["capacity_bytes"], each["free_bytes"])


def _neighbour(each: _native.Lease) -> Neighbour:
    return Neighbour(
        id=each["id"],
        name=each["name"],
        user=each["user"],
        pid=each["pid"],
        program=each["program"],
        state=each["state"],
        held=each["held_bytes"],
        overhead=each["overhead_bytes"],
        reserve=each["reserve_bytes"],
        idle=each["idle"],
    )

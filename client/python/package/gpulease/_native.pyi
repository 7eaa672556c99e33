"""The native part: plain data from the broker, and C functions for a pluggable allocator. Use the package instead."""

from collections.abc import Callable
from typing import Optional, TypedDict, final

__version__: str

class GpuleaseError(Exception):
    """What gpulease could not do; the message says what to do."""

class NotInALease(GpuleaseError):
    """This process was not started in a lease."""

class BrokerUnreachable(GpuleaseError):
    """No broker answers."""

class Refused(GpuleaseError):
    """The broker's answer is no: `args` are its sentence and the reason's word."""

class Broker(TypedDict):
    version: str
    pid: int
    socket: str
    hold: str

class Device(TypedDict):
    index: int
    kind: str
    uuid: str
    name: str
    total_bytes: int
    capacity_bytes: int
    free_bytes: int
    set_aside_bytes: int
    overhead_bytes: int
    held_bytes: int
    draining_bytes: int
    quarantined_bytes: int
    off_book_bytes: Optional[int]

class Member(TypedDict):
    pid: int
    command: str
    overhead_bytes: int
    overhead_measured: bool

class Lease(TypedDict):
    id: int
    name: str
    user: str
    pid: int
    program: str
    state: str
    devices: list[int]
    reserve_bytes: int
    limit_bytes: int
    held_bytes: int
    held_peak_bytes: int
    overhead_bytes: int
    draining_bytes: int
    away_bytes: int
    guaranteed: bool
    suspendable: bool
    idle: bool
    overdue: bool
    suspensions: int
    segments: int
    age_seconds: float
    waited_seconds: float
    members: list[Member]

class Waiting(TypedDict):
    id: int
    name: str
    user: str
    position: int
    reserve_bytes: int
    short_by_bytes: int
    waited_seconds: float

class State(TypedDict):
    broker: Broker
    devices: list[Device]
    leases: list[Lease]
    waiting: list[Waiting]

class PoolState(TypedDict):
    open: bool
    segments: int
    held_bytes: int
    trouble: Optional[str]

@final
class Listener:
    """A function that is called when bytes are wanted, until it is closed."""

    def close(self) -> None:
        """No call begins after this one returns. Closing twice is no error."""
    @property
    def is_open(self) -> bool:
        """Whether calls still come."""

def state() -> State:
    """The state of the broker of this process, now."""

def why(lease: int) -> tuple[str, list[str]]:
    """Why a lease is as it is: a sentence, and details of a sentence each."""

def listen(call: Callable[[int, int, float], object]) -> Listener:
    """Calls `call(device, bytes, seconds)` on a thread of the library's whenever bytes of the lease are wanted."""

def open_pool(wait_seconds: float = 0.0) -> None:
    """Pins the lease and makes the C functions serve memory of it."""

def pool_state() -> PoolState:
    """The pool of this process as it is now."""

def leave() -> None:
    """Says good-bye to the broker."""

"""Leased GPU memory for Python programs: what the lease holds, what fits into it, and what to do when it is full.

    import gpulease

    print(gpulease.lease())                         # which lease am I in?
    print(gpulease.memory_report())                 # PyTorch's view and the broker's
    gpulease.on_pressure()                          # give cached memory back when others want it
    best = gpulease.find_batch_size(step, 1, 512)   # the largest batch that fits the lease

Sizes are bytes everywhere; `gpulease.text(size)` writes them for people. Nothing here imports PyTorch unless it is needed,
and all but the functions about PyTorch's own memory work without it.
"""

import atexit

from . import _native
from ._native import __version__
from .batch_size import Accumulation, BatchSize, NothingFits, accumulation, find_batch_size
from .estimate import Estimate, estimate
from .leak_watch import Leak, LeakWarning, LeakWatch
from .leases import (
    BrokerUnreachable,
    Device,
    GpuleaseError,
    Lease,
    LeaseEnded,
    Neighbour,
    NotInALease,
    Refused,
    lease,
    why_no_lease,
)
from .memory import Memory, NeedsPyTorch, Peak, TorchMemory, is_out_of_memory
from .model_cost import ModelCost, model_cost
from .out_of_memory import Option, OutOfMemory, explain_out_of_memory
from .pool import PoolState, mem_pool, pool_state
from .pressure import PressureListener, Recall, on_pressure
from .report import Framework, MemoryReport, memory_report
from .sizes import text
from .trial import Trial

__all__ = [
    "Accumulation",
    "BatchSize",
    "BrokerUnreachable",
    "Device",
    "Estimate",
    "Framework",
    "GpuleaseError",
    "Leak",
    "LeakWarning",
    "LeakWatch",
    "Lease",
    "LeaseEnded",
    "Memory",
    "MemoryReport",
    "ModelCost",
    "NeedsPyTorch",
    "Neighbour",
    "NotInALease",
    "NothingFits",
    "Option",
    "OutOfMemory",
    "Peak",
    "PoolState",
    "PressureListener",
    "Recall",
    "Refused",
    "TorchMemory",
    "Trial",
    "__version__",
    "accumulation",
    "estimate",
    "explain_out_of_memory",
    "find_batch_size",
    "is_out_of_memory",
    "lease",
    "mem_pool",
    "memory_report",
    "model_cost",
    "on_pressure",
    "pool_state",
    "text",
    "why_no_lease",
]

# So that the end of the program does not look like a crash to the broker.
atexit.register(_native.leave)

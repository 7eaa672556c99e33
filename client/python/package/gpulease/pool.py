"""Leased memory for some of PyTorch's tensors only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from . import _native
from .memory import NeedsPyTorch, torch_or_raise

#: As good as no end, in seconds; the native part takes no infinity.
_FOR_EVER = 10.0 * 365 * 24 * 3600
#: PyTorch keeps no reference of its own to an allocator that a pool uses.
_allocators: list[Any] = []


@dataclass(frozen=True)
class PoolState:
    """What the pools of this process have taken from the lease."""

    open: bool
    segments: int
    #: In bytes.
    held: int
    #: Why the last allocation brought nothing; None where it did.
    trouble: Optional[str]


def mem_pool(*, wait: float = 0.0) -> Any:
    """A `torch.cuda.MemPool` whose memory is this process's lease, for programs that run without the preload library and
    want only some tensors there:

        with torch.cuda.use_mem_pool(gpulease.mem_pool()):
            weights = torch.empty(1 << 28, device="cuda")

    The lease is pinned: what holds plain addresses can't be moved. Above the reserve an allocation waits at most `wait`
    seconds (`math.inf`: until there is room), then PyTorch is out of memory; `pool_state().trouble` has the broker's
    reason.

    Raises `NeedsPyTorch`, `NotInALease`, `BrokerUnreachable`, and `Refused` where the lease may not be pinned.
    """
    if not wait >= 0:
        raise ValueError(f"wait={wait}: it is a number of seconds, 0 or more")
    torch = torch_or_raise("mem_pool")
    if not hasattr(torch.cuda, "MemPool"):
        raise NeedsPyTorch(f"mem_pool needs PyTorch 2.5 or later, and this is {torch.__version__}")
    _native.open_pool(min(wait, _FOR_EVER))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _native.__file__, "gpulease_pool_allocate", "gpulease_pool_free"
    )
    _allocators.append(allocator)
    return torch.cuda.MemPool(allocator.allocator())


def pool_state() -> PoolState:
    """What the pools of this process have taken from the lease so far."""
    state = _native.pool_state()
    return PoolState(state["open"], state["segments"], state["held_bytes"], state["trouble"])

"""What happens when the broker wants bytes of the lease back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from . import _native
from .memory import Memory, loaded_torch
from .sizes import text


@dataclass(frozen=True)
class Recall:
    """The broker wants bytes back: memory above the lease's reserve that others wait for."""

    #: The broker's number of the device.
    device: int
    #: How many bytes.
    bytes: int
    #: Until when; past it the lease gets no growth until it has given enough back.
    seconds: float

    def __str__(self) -> str:
        return f"{text(self.bytes)} of device {self.device} wanted within {self.seconds:.1f} s"


class PressureListener:
    """Listens until it is closed, or the `with` block that it opens ends."""

    def __init__(self, native: _native.Listener) -> None:
        self._native = native

    def close(self) -> None:
        """No call begins after this one returns. Closing twice is no error."""
        self._native.close()

    @property
    def is_open(self) -> bool:
        """Whether calls still come."""
        return self._native.is_open

    def __enter__(self) -> PressureListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def on_pressure(
    callback: Optional[Callable[[Recall], object]] = None,
    *,
    empty_cache: bool = True,
    memory: Optional[Memory] = None,
) -> PressureListener:
    """From now on: when the broker wants bytes of this process's lease back, calls `callback(recall)` to let the program
    drop what it can do without, then empties PyTorch's cache (unless `empty_cache=False`), so that it goes to the others.

    The call comes on a thread of its own, one after the other, while the program goes on. An exception of the callback
    is told on standard error; the cache is emptied all the same. Keeping the listener is not needed: it listens until
    it is closed. `memory` names another cache than PyTorch's.

    In a program under the preload library the lease is pinned by this: it is not suspended from then on.

    Raises `NotInALease`, `BrokerUnreachable` and `Refused`, and `TypeError` where the callback can't be called so.
    """
    if callback is not None:
        _check(callback)

    def told(device: int, size: int, seconds: float) -> None:
        try:
            if callback is not None:
                callback(Recall(device, size, seconds))
        finally:
            if empty_cache:
                _empty(memory)

    return PressureListener(_native.listen(told))


def _check(callback: Callable[[Recall], object]) -> None:
    """Else it would only show when bytes are wanted, on another thread."""
    if not callable(callback):
        raise TypeError(f"the callback is a function of one argument, the Recall, and not {callback!r}")
    try:
        takes = inspect.signature(callback)
    except ValueError:
        # Some that are written in C do not say what they take.
        return
    try:
        takes.bind(None)
    except TypeError as error:
        raise TypeError(
            f"the callback is called with one argument, the Recall, and {callback!r} can't be: {error}"
        ) from None


def _empty(memory: Optional[Memory]) -> None:
    if memory is not None:
        memory.empty_cache()
        return
    torch = loaded_torch()
    if torch is not None:
        torch.cuda.empty_cache()

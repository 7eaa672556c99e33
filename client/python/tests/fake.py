"""A framework's memory that needs no GPU: blocks are freed when nothing refers to them, as tensors are, and what is freed
is cached, as PyTorch does it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

from gpulease import Peak


class FakeOutOfMemory(RuntimeError):
    """Like `torch.OutOfMemoryError`."""


class Block:
    """Memory in use for as long as something refers to it."""

    def __init__(self, memory: FakeMemory, size: int, kind: str) -> None:
        self.kind = kind
        memory.blocks.add(self)
        weakref.finalize(self, memory.freed, size)


class FakeMemory:
    """A device of `total` bytes. They are taken from it in whole grains."""

    name = "Fake"

    def __init__(self, total: int, *, grain: int = 1) -> None:
        self.total = total
        self.grain = grain
        self.cap: Optional[int] = None
        self.live = 0
        self.taken = 0
        self.pinned_down = 0
        self.top = Peak(0, 0)
        self.blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        #: Every size that was ever taken from the device, to see that a cap was kept.
        self.most_taken = 0

    def block(self, size: int, kind: str = "block") -> Block:
        """Takes memory. Raises `FakeOutOfMemory`."""
        if self.live + size > self.taken:
            self._take(self.live + size)
        self.live += size
        self.top = Peak(max(self.top.allocated, self.live), max(self.top.reserved, self.taken))
        return Block(self, size, kind)

    def freed(self, size: int) -> None:
        self.live -= size

    def _take(self, size: int) -> None:
        most = self.total if self.cap is None else min(self.total, self.cap)
        if size > most:
            total, free = self.total / 2**30, max(0, most - self.live) / 2**20
            raise FakeOutOfMemory(
                f"CUDA out of memory. Tried to allocate {(size - self.live) / 2**20:.2f} MiB. "
                f"GPU 0 has a total capacity of {total:.2f} GiB of which {free:.2f} MiB is free."
            )
        self.taken = min(most, -(-size // self.grain) * self.grain)
        self.most_taken = max(self.most_taken, self.taken)

    def allocated(self) -> int:
        return self.live

    def reserved(self) -> int:
        return self.taken

    def fragmented(self) -> int:
        return self.pinned_down

    def peak(self) -> Peak:
        return self.top

    def reset_peak(self) -> None:
        self.top = Peak(self.live, self.taken)

    def empty_cache(self) -> None:
        self.taken = self.live + self.pinned_down

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, FakeOutOfMemory)

    @contextmanager
    def capped(self, most: int) -> Iterator[None]:
        before, self.cap = self.cap, most
        try:
            yield
        finally:
            self.cap = before

    def census(self) -> Counter[str]:
        return Counter(block.kind for block in self.blocks)

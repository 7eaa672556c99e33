"""CuPy's memory for the functions of gpulease that search, estimate and watch: `memory=CupyMemory()`. To be copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy
import gpulease


class CupyMemory:
    """CuPy's default pool on its current device. Peaks count what the thread allocates that has made this."""

    name = "CuPy"

    def __init__(self) -> None:
        self._pool, self._top = cupy.get_default_memory_pool(), gpulease.Peak(0, 0)
        _Look(self).__enter__()

    def allocated(self) -> int:
        return self._pool.used_bytes()

    def reserved(self) -> int:
        return self._pool.total_bytes()

    def fragmented(self) -> int:
        # The pool does not tell.
        return 0

    def peak(self) -> gpulease.Peak:
        return self._top

    def reset_peak(self) -> None:
        self._top = gpulease.Peak(self.allocated(), self.reserved())

    def look(self) -> None:
        """Notes what is in use now, where it is more than ever since the peak was reset."""
        self._top = gpulease.Peak(max(self._top.allocated, self.allocated()), max(self._top.reserved, self.reserved()))

    def empty_cache(self) -> None:
        self._pool.free_all_blocks()

    def is_out_of_memory(self, error: BaseException) -> bool:
        return gpulease.is_out_of_memory(error)

    @contextmanager
    def capped(self, most: int) -> Iterator[None]:
        before = self._pool.get_limit()
        # No limit at all is how CuPy reads 0.
        self._pool.set_limit(size=max(1, min(most, before) if before else most))
        try:
            yield
        finally:
            self._pool.set_limit(size=before)


class _Look(cupy.cuda.MemoryHook):
    name = "gpulease"

    def __init__(self, memory: CupyMemory) -> None:
        super().__init__()
        self._memory = memory

    def malloc_postprocess(self, **_: object) -> None:
        self._memory.look()

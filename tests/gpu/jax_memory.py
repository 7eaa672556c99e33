"""JAX's memory for the functions of gpulease that report and watch: `memory=JaxMemory()`. To be copied.

JAX tells no peak that can be reset and has no limit that can be lowered, so that nothing can be searched or estimated.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import gpulease
import jax


class JaxMemory:
    """JAX's default allocator on one device."""

    name = "JAX"

    def __init__(self, device: jax.Device | None = None) -> None:
        self._device = device or jax.local_devices()[0]

    def _figure(self, name: str) -> int:
        # The platform allocator has none.
        return int((self._device.memory_stats() or {}).get(name, 0))

    def allocated(self) -> int:
        return self._figure("bytes_in_use")

    def reserved(self) -> int:
        return self._figure("pool_bytes") or self.allocated()

    def fragmented(self) -> int:
        return 0

    def peak(self) -> gpulease.Peak:
        """Since the program began."""
        return gpulease.Peak(self._figure("peak_bytes_in_use"), self._figure("peak_pool_bytes") or self.reserved())

    def reset_peak(self) -> None:
        raise NotImplementedError("JAX tells no peak that can be reset")

    def empty_cache(self) -> None:
        """What JAX took at its start it keeps."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return gpulease.is_out_of_memory(error)

    def capped(self, most: int) -> AbstractContextManager[None]:
        raise NotImplementedError("JAX's limit can't be lowered while it runs")

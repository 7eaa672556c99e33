"""A framework's own view of its memory on one device, behind one small protocol."""

from __future__ import annotations

import gc
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Optional, Protocol, Union, runtime_checkable

from ._native import GpuleaseError

#: What libraries write where the device has no memory left, in errors of no class of their own.
_WORDS = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cudaErrorMemoryAllocation",
    "RESOURCE_EXHAUSTED",
)


class NeedsPyTorch(GpuleaseError):
    """A function about PyTorch's memory, without PyTorch or without a GPU that it sees."""


class Peak(NamedTuple):
    """The most at one time since the peak was reset, in bytes."""

    #: In live tensors.
    allocated: int
    #: Taken from the device: live, cached and fragmented.
    reserved: int


@runtime_checkable
class Memory(Protocol):
    """What this package asks of a framework's allocator. All figures are bytes on one device."""

    #: For people: "PyTorch".
    name: str

    def allocated(self) -> int:
        """In live tensors."""
        ...

    def reserved(self) -> int:
        """Taken from the device: live, cached and fragmented."""
        ...

    def fragmented(self) -> int:
        """Of what is reserved and not allocated: what emptying the cache does not give back."""
        ...

    def peak(self) -> Peak:
        """The most since `reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Peaks start again at what is in use now."""
        ...

    def empty_cache(self) -> None:
        """Gives what is cached and in one piece back to the device."""
        ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether the error says that the device has no memory left for this program."""
        ...

    def capped(self, most: int) -> AbstractContextManager[None]:
        """While it lasts the framework takes no more than `most` bytes from the device, and is out of memory instead."""
        ...


def is_out_of_memory(error: Optional[BaseException]) -> bool:
    """Whether an error, or one that it was explicitly raised from, says that a GPU has no memory left.

    Knows PyTorch's, CuPy's and JAX's exceptions, and those of cuBLAS, cuDNN and CUDA itself. A host that is out of
    memory does not count.
    """
    while error is not None:
        kind = type(error)
        of_a_gpu = isinstance(error, RuntimeError) or kind.__module__.split(".")[0] in (
            "torch",
            "cupy",
            "cupy_backends",
        )
        if of_a_gpu and (kind.__name__ == "OutOfMemoryError" or any(word in str(error) for word in _WORDS)):
            return True
        error = error.__cause__
    return False


def torch_or_raise(what: str) -> Any:
    """PyTorch with a GPU.

    Raises `NeedsPyTorch` where there is none.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise NeedsPyTorch(f"{what} needs PyTorch, which this Python does not have: {error}; install torch") from None
    if not torch.cuda.is_available():
        raise NeedsPyTorch(f"{what} needs a GPU, and PyTorch {torch.__version__} sees none in this process")
    return torch


def loaded_torch() -> Any:
    """PyTorch where the program has imported it and uses a GPU, else None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return torch if cuda is not None and cuda.is_initialized() else None


class TorchMemory:
    """PyTorch's caching allocator on one CUDA device."""

    name = "PyTorch"

    def __init__(self, device: Union[int, str, None] = None) -> None:
        """The current device where none is named. Raises `NeedsPyTorch`."""
        self._torch = torch_or_raise("this memory")
        cuda = self._torch.cuda
        given = None if device is None else self._torch.device(device)
        index = given.index if given is not None else None
        #: PyTorch's number of the device.
        self.index: int = cuda.current_device() if index is None else index

    def allocated(self) -> int:
        return int(self._torch.cuda.memory_allocated(self.index))

    def reserved(self) -> int:
        return int(self._torch.cuda.memory_reserved(self.index))

    def fragmented(self) -> int:
        # Another backend than the native one has no such figure.
        return int(self._torch.cuda.memory_stats(self.index).get("inactive_split_bytes.all.current", 0))

    def peak(self) -> Peak:
        cuda = self._torch.cuda
        return Peak(int(cuda.max_memory_allocated(self.index)), int(cuda.max_memory_reserved(self.index)))

    def reset_peak(self) -> None:
        self._torch.cuda.reset_peak_memory_stats(self.index)

    def empty_cache(self) -> None:
        self._torch.cuda.empty_cache()

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)

    @contextmanager
    def capped(self, most: int) -> Iterator[None]:
        cuda = self._torch.cuda
        total = cuda.mem_get_info(self.index)[1]
        before = cuda.get_per_process_memory_fraction(self.index) if self._knows_fraction() else 1.0
        cuda.set_per_process_memory_fraction(min(1.0, before, most / total), self.index)
        try:
            yield
        finally:
            cuda.set_per_process_memory_fraction(before, self.index)

    def census(self) -> Counter[str]:
        """How many tensors of each kind the program refers to on this device, by their shapes and types."""
        # Not isinstance: it would wake what only poses as something else.
        tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), self._torch.Tensor))
        return Counter(self._kind(tensor) for tensor in tensors if tensor.is_cuda and tensor.device.index == self.index)

    def _kind(self, tensor: Any) -> str:
        shape = "x".join(str(size) for size in tensor.shape) or "scalar"
        graph = ", with the graph that computed it" if tensor.grad_fn is not None else ""
        return f"{shape} {str(tensor.dtype).removeprefix('torch.')}{graph}"

    def _knows_fraction(self) -> bool:
        # From PyTorch 2.8 on.
        return hasattr(self._torch.cuda, "get_per_process_memory_fraction")


def memory_or_default(memory: Optional[Memory], what: str) -> Memory:
    """The memory given, else PyTorch's on its current device. Raises `NeedsPyTorch`."""
    if memory is not None:
        return memory
    torch_or_raise(what)
    return TorchMemory()

"""How what helps against a full memory is done in each framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Ways:
    """Sentences for people, about one framework. None where it has no such thing."""

    caches: str
    batch: str
    precision: Optional[str]
    checkpointing: Optional[str]
    #: How to let it take more of the lease than it does by itself.
    share: Optional[str] = None
    #: What doing less at once is called.
    smaller: str = "A smaller batch, with gradient accumulation to keep the effective one"


PYTORCH = Ways(
    caches="torch.cuda.empty_cache(), after tensors that are not needed are deleted.",
    batch="gpulease.find_batch_size(step) finds the largest that fits; its accumulation(batch) the pieces.",
    precision='with torch.autocast("cuda", torch.bfloat16): forward and loss; with float16 a torch.amp.GradScaler as well.',
    checkpointing="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) around each block; "
    "costs about a third more time.",
)

JAX = Ways(
    caches="jax.clear_caches(), after arrays that are not needed are deleted.",
    batch="Average the gradients of several pieces before the update; gpulease.accumulation(batch, most) says which.",
    precision="jnp.bfloat16 for activations, and float32 for the parameters that the optimizer keeps.",
    checkpointing="jax.checkpoint(block) for each block; costs about a third more time.",
    share="XLA_CLIENT_MEM_FRACTION=0.95 in the environment (before that name was there: XLA_PYTHON_CLIENT_MEM_FRACTION), "
    "since JAX sets out with 75 % of what it sees.",
)

CUPY = Ways(
    caches="cupy.get_default_memory_pool().free_all_blocks(), after arrays that are not needed are deleted.",
    batch="Work on the data in pieces; gpulease.accumulation(whole, most) says which.",
    precision=None,
    checkpointing=None,
    smaller="Less at once",
)

_OF_MODULES = {"torch": PYTORCH, "jax": JAX, "jaxlib": JAX, "cupy": CUPY, "cupy_backends": CUPY}


def ways_of(error: Optional[BaseException]) -> Ways:
    """Those of the framework that raised the error, or what it was raised from; PyTorch's where that can't be told."""
    while error is not None:
        known = _OF_MODULES.get(type(error).__module__.partition(".")[0])
        if known is not None:
            return known
        if str(error).startswith("RESOURCE_EXHAUSTED"):
            return JAX
        error = error.__cause__
    return PYTORCH

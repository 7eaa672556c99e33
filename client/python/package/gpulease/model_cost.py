"""What a model and its optimizer take, as far as they tell; nothing here needs PyTorch itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Optional

#: Tensors that these optimizers keep for each trained parameter, where they have not made a step yet.
_STATES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "RMSprop": 1, "Adadelta": 2}


@dataclass(frozen=True)
class ModelCost:
    """What does not depend on the batch, in bytes."""

    weights: int
    gradients: int
    optimizer: int
    #: The widest of its floating-point weights, in bytes: 4 where they are float32.
    width: int
    #: How many layers of one kind follow each other, at most; 1 where none do.
    blocks: int

    @property
    def fixed(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer


def model_cost(model: Any, optimizer: Any = None) -> ModelCost:
    """Counts a `torch.nn.Module`, or what looks like one, and its optimizer."""
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad]
    return ModelCost(
        weights=_bytes(parameters),
        gradients=_bytes(trained),
        optimizer=_optimizer(optimizer, trained),
        width=max((each.element_size() for each in parameters if _is_floating(each)), default=0),
        blocks=_blocks(model),
    )


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _is_floating(tensor: Any) -> bool:
    return "float" in str(getattr(tensor, "dtype", "float"))


def _optimizer(optimizer: Any, trained: list[Any]) -> int:
    if optimizer is None:
        return 0
    state = _bytes(_tensors(optimizer.state.values()))
    if state:
        return state
    name = type(optimizer).__name__
    momentum = any(group.get("momentum") for group in optimizer.param_groups)
    return _bytes(trained) * _STATES.get(name, 1 if momentum else 0)


def _tensors(states: Iterable[Any]) -> Iterator[Any]:
    for state in states:
        yield from (value for value in state.values() if hasattr(value, "element_size"))


def _blocks(model: Any) -> int:
    modules = getattr(model, "modules", None)
    if modules is None:
        return 1
    weighty = (
        [child for child in each.children() if next(iter(child.parameters()), None) is not None] for each in modules()
    )
    kinds = (Counter(map(type, children)) for children in weighty)
    return max((max(kind.values(), default=1) for kind in kinds), default=1)


def activations(cost: Optional[ModelCost], peak: int) -> Optional[int]:
    """What a step keeps for its backward pass: the peak without what does not depend on the batch."""
    return None if cost is None else max(0, peak - cost.fixed)

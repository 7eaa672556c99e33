"""A training loop over a fake memory, with the phases of a real one."""

from __future__ import annotations

from typing import Optional

from tests.fake import Block, FakeMemory

MIB = 1 << 20


class Trainer:
    """Weights and gradients once, optimizer state from the first step on, activations for each sample, and a moment in
    the backward pass and in the optimizer that takes more."""

    def __init__(
        self,
        memory: FakeMemory,
        *,
        weights: int = 64 * MIB,
        each: int = 3 * MIB,
        backward_each: int = 1 * MIB,
        update: int = 16 * MIB,
    ) -> None:
        self.memory = memory
        self.each, self.backward_each, self.update_takes, self.size = each, backward_each, update, weights
        self.weights = memory.block(weights, "weights")
        self.gradients: Optional[Block] = None
        self.state: list[Block] = []
        #: Batch sizes in the order that they came.
        self.batches: list[int] = []

    def step(self, batch: int) -> None:
        self.batches.append(batch)
        activations = self.forward(batch)
        self.backward(batch, activations)
        del activations
        self.update()

    def forward(self, batch: int) -> list[Block]:
        first = self.memory.block(self.each * (batch // 2), "activation")
        return [first, self.memory.block(self.each * (batch - batch // 2), "activation")]

    def backward(self, batch: int, activations: list[Block]) -> None:
        if self.gradients is None:
            self.gradients = self.memory.block(self.size, "gradients")
        workspace = self.memory.block(batch * self.backward_each, "workspace")
        assert workspace and activations

    def update(self) -> None:
        if not self.state:
            self.state = [self.memory.block(self.size, "state") for _ in range(2)]
        moment = self.memory.block(self.update_takes, "moment")
        assert moment

    def fits(self, batch: int, most: int) -> bool:
        """The same by arithmetic: the most at one time over two steps."""
        model = self.size * 4
        return max(model + batch * (self.each + self.backward_each), model + self.update_takes) <= most

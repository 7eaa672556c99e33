#!/usr/bin/env python3
"""The Python package on a GPU with PyTorch: starts a broker of its own and runs each case in a lease.

    python_on_card.py [--programs FOLDER] [CASE...]

FOLDER has gpulease, gpuleased, libgpulease_preload.so and the wheel (the unpacked bundle). Prints a row for each case and
ends with what passed, failed and was skipped. Needs neither a network nor an installed package.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

GIB, MIB = 1 << 30, 1 << 20
PATIENCE = 120
SKIPPED = 77

#: Each case with the arguments of `gpulease run`.
CASES: dict[str, tuple[Callable[[], str], list[str]]] = {}


def case(*run: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """A case that runs in a lease got with these arguments; it returns a line about what it saw."""

    def add(function: Callable[[], str]) -> Callable[[], str]:
        CASES[function.__name__.replace("_", "-")] = function, list(run)
        return function

    return add


class Skip(Exception):
    """The case can't be run here."""


def near(one: float, other: float, share: float) -> bool:
    return abs(one - other) <= share * max(abs(one), abs(other))


# --- What the cases train ---------------------------------------------------------------------------------------------


def transformer(torch, layers=6, width=1024):
    """A small transformer and its optimizer."""
    layer = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def step_of(torch, model, optimizer, length=256, width=1024):
    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        x = torch.randn(batch, length, width, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()

    return step


def modules():
    import gpulease
    import torch

    return gpulease, torch


def others(*names: str):
    """gpulease and these modules, without which a case can't be run here."""
    import gpulease

    try:
        return gpulease, *(importlib.import_module(name) for name in names)
    except ImportError as error:
        raise Skip(f"no {names[0]}: {error}") from None


def recalled(gpulease, then: Callable[[], bool] = lambda: True):
    """Somebody wants the lease's bytes; what the program was told, once it has come to this `then`."""
    seen, done = [], threading.Event()

    def told(recall):
        seen.append(recall)
        done.set()

    with gpulease.on_pressure(told):
        cli("recall", f"L{gpulease.lease().id}")
        assert done.wait(PATIENCE), "no call came"
        wait(then, "what was asked for is met")
    return seen[0]


def explained(gpulease, take: Callable[[], object], hint: str) -> None:
    """What takes 32 GiB is out of memory in any lease here, which is explained, with the framework's own remedy."""
    try:
        take()
    except Exception as error:  # noqa: BLE001 - JAX's class has had several names
        assert gpulease.is_out_of_memory(error), repr(error)
        said = gpulease.explain_out_of_memory(error)
        print(said)
        assert said.wanted and said.wanted >= 32 * GIB and hint in str(said), error
    else:
        raise AssertionError("32 GiB fit a lease of 6")


# --- Cases ------------------------------------------------------------------------------------------------------------


@case("-m", "4GiB..8GiB")
def report() -> str:
    """The broker's figure covers PyTorch's, and the table says both."""
    gpulease, torch = modules()
    tensor = torch.ones(3 * GIB // 4, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    seen = gpulease.memory_report()
    print(seen)
    assert seen.lease is not None and seen.framework is not None, seen
    assert seen.framework.allocated >= 3 * GIB, seen.framework
    assert seen.lease.held >= seen.framework.reserved, (seen.lease.held, seen.framework.reserved)
    assert seen.lease.held <= seen.lease.limit
    assert tensor.sum().item() == tensor.numel()
    context = "measured" if seen.lease.overhead_measured else "estimated"
    return (
        f"allocated {gpulease.text(seen.framework.allocated)}, held {gpulease.text(seen.lease.held)}, "
        f"context {gpulease.text(seen.lease.overhead)} ({context})"
    )


@case("-m", "4GiB")
def field_10() -> str:
    """HAMi-core#55: over the limit came back as an unknown error, and the framework died. Here it is PyTorch's own, and
    training goes on."""
    gpulease, torch = modules()
    model, optimizer = transformer(torch, layers=2)
    step = step_of(torch, model, optimizer)
    step(1)
    limit = gpulease.lease().limit
    for size in (limit, 2 * limit, 1 << 45):
        try:
            torch.empty(size, dtype=torch.uint8, device="cuda")
        except RuntimeError as error:
            assert type(error) is torch.OutOfMemoryError, repr(error)
        else:
            raise AssertionError(f"{size} bytes fit a lease of {limit} that holds a model")
        torch.cuda.empty_cache()
        step(1)
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())
    return "torch.OutOfMemoryError at the limit and above it, and a step after each"


@case("-m", "4GiB")
def field_12() -> str:
    """pytorch#58466: a cap ignored the context and libraries. Here the whole lease is for tensors, and what the context
    takes is measured and charged beside it."""
    gpulease, torch = modules()
    # Some room for what a sum takes.
    limit, most = gpulease.lease().limit, gpulease.lease().limit - 64 * MIB
    tensor = torch.ones(most, dtype=torch.uint8, device="cuda")
    assert int(tensor[:: 1 << 20].sum()) == most >> 20
    wait(lambda: gpulease.lease().overhead_measured, "the card tells what the context takes")
    # The broker looks once a second, and may have looked while the context was made.
    first = gpulease.lease().overhead_here
    wait(lambda: 300 * MIB <= gpulease.lease().overhead_here <= 2 * GIB, f"a context is charged, and not {first} bytes")
    full = gpulease.lease()
    assert most <= full.held <= limit, full
    (device,) = full.devices
    others = sum(each.held + each.overhead for each in full.neighbours)
    assert device.free <= device.capacity - full.held - full.overhead - others, (device, full)
    seen = f"{gpulease.text(full.overhead_here)} of a context beside them, seen first as {gpulease.text(first)}"
    return f"{gpulease.text(full.held)} of tensors, and {seen}"


@case("-m", "2GiB..12GiB")
def pressure() -> str:
    """Bytes are wanted: PyTorch's cache goes back, and what it is asked for is met."""
    gpulease, torch = modules()
    kept = torch.ones(GIB // 8, device="cuda")
    cached = [torch.empty(GIB // 4, device="cuda") for _ in range(8)]
    cached.clear()
    full = gpulease.lease()
    assert full.held >= 8 * GIB, full
    seen = recalled(gpulease, lambda: gpulease.lease().held <= full.reserve)
    assert kept.sum().item() == kept.numel(), "what is in use was touched"
    again = torch.ones(GIB // 4, device="cuda")
    assert again.sum().item() == again.numel()
    return f"{seen}; held {gpulease.text(full.held)}, then {gpulease.text(gpulease.lease().held)}"


@case("-m", "8GiB..24GiB")
def batch_size() -> str:
    """The found batch trains on, the next one does not fit, and no neighbour's byte was touched meanwhile."""
    gpulease, torch = modules()
    model, optimizer = transformer(torch)
    step = step_of(torch, model, optimizer)
    memory = gpulease.TorchMemory()
    found = gpulease.find_batch_size(step, 1, 4096, on_trial=lambda trial: print(trial, flush=True))
    print(found)
    ours = gpulease.lease()
    assert found.limited_by == "memory" and found.batch_size > 1
    assert ours.held_peak <= ours.reserve + 64 * MIB, f"{ours.held_peak} was held at most, and {ours.reserve} set aside"
    from gpulease.trial import attempt

    # A few more: how PyTorch cuts its blocks moves the edge by a sample or so.
    beyond = attempt(memory, step, found.batch_size + 1 + found.batch_size // 32, repeat=2, most=found.budget)
    assert not beyond.fits, "more fits, too"
    for _ in range(20):
        step(found.batch_size)
    assert gpulease.lease().held_peak <= ours.reserve + 64 * MIB
    pieces = found.accumulation(1000)
    assert pieces.effective == 1000 and max(pieces.sizes) <= found.batch_size
    return f"{found}; 1000 samples in {pieces.steps} pieces; at most {gpulease.text(ours.held_peak)} held"


@case("-m", "4GiB")
def each_phase() -> str:
    """Out of memory in forward, backward and optimizer: told where, and nothing of the step stays."""
    gpulease, torch = modules()
    memory, said = gpulease.TorchMemory(), []
    from gpulease.trial import attempt

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient + torch.empty(8 * GIB, dtype=torch.uint8, device="cuda").sum()

    def in_forward(batch):
        held = torch.ones(GIB // 4, device="cuda", requires_grad=True)
        (held * torch.ones(2 * GIB, device="cuda")[: GIB // 4]).sum().backward()

    def in_backward(batch):
        held = torch.ones(GIB // 8, device="cuda", requires_grad=True)
        Greedy.apply(held * 3).sum().backward()

    def in_optimizer(batch):
        weight = torch.nn.Parameter(torch.ones(GIB // 4 + GIB // 16, device="cuda"))
        optimizer = torch.optim.Adam([weight], foreach=False)
        weight.grad = torch.ones_like(weight)
        optimizer.step()

    for step in (in_forward, in_backward, in_optimizer):
        trial = attempt(memory, step, 1)
        assert not trial.fits, step.__name__
        assert step.__name__ in trial.where, (step.__name__, trial.where)
        assert trial.left == 0 and memory.allocated() == 0, (step.__name__, trial.left)
        said.append(step.__name__)
    alive = torch.ones(GIB // 2, device="cuda")
    assert alive.sum().item() == alive.numel(), "there is life after it"
    return f"{', '.join(said)}: nothing left, {gpulease.text(memory.reserved())} in use afterwards"


@case("-m", "24GiB")
def estimate() -> str:
    """What is said of a batch is enough for it and not far too much, though three small ones take nearly the same."""
    gpulease, torch = modules()
    step, memory = step_of(torch, *transformer(torch)), gpulease.TorchMemory()
    # Of these alone nothing follows but a bound.
    small = gpulease.estimate(step, (2, 4, 8), up_to=8)
    said = gpulease.estimate(step, (2, 4, 8), on_trial=lambda trial: print(trial, flush=True))
    print(small, said, sep="\n")
    assert said.settled, said
    measured = max(trial.batch_size for trial in said.trials)
    for batch in (12, 32, 2 * measured):
        memory.empty_cache()
        memory.reset_peak()
        step(batch)
        took = memory.peak().reserved
        print(f"{batch} samples took {took}; {small.lease_for(batch)} by the bound, {said.lease_for(batch)} by the estimate")
        assert small.lease_for(batch) >= took and said.lease_for(batch) >= took, "the job would not fit its lease"
        assert batch < 32 or near(said.peak(batch), took, 0.15), (batch, said.peak(batch), took)
    return f"{said}; {batch} samples: {gpulease.text(said.peak(batch))} said, {gpulease.text(took)} taken; {said.command(batch)}"


@case("-m", "4GiB")
def explain() -> str:
    """An error of PyTorch's is explained with the lease's numbers."""
    gpulease, torch = modules()
    model, optimizer = transformer(torch, layers=4)
    step = step_of(torch, model, optimizer)
    step(1)
    torch.cuda.reset_peak_memory_stats()
    try:
        step(512)
    except torch.OutOfMemoryError as error:
        said = gpulease.explain_out_of_memory(error, model=model, optimizer=optimizer, batch_size=512)
    else:
        raise AssertionError("512 samples fit 4 GiB")
    print(said)
    assert said.wanted and said.budget == gpulease.lease().limit and said.left < said.budget, said
    named = " ".join(str(option) for option in said.options)
    for word in ("smaller batch", "Mixed precision", "checkpointing of 4 blocks", "A larger lease", "GiB"):
        assert word in named, (word, named)
    cost = gpulease.model_cost(model, optimizer)
    weights = sum(each.numel() * 4 for each in model.parameters())
    assert (cost.weights, cost.gradients, cost.width, cost.blocks) == (weights, weights, 4, 4), cost
    assert near(cost.optimizer, 2 * weights, 0.01), cost
    return str(said).splitlines()[0]


@case("-m", "8GiB")
def savings() -> str:
    """What bf16 and checkpointing save at most is at least what they save."""
    gpulease, torch = modules()
    from torch.utils.checkpoint import checkpoint

    model, optimizer = transformer(torch, layers=8)
    memory, cost = gpulease.TorchMemory(), gpulease.model_cost(model, optimizer)
    x = torch.randn(8, 256, 1024, device="cuda")

    def peak(run):
        # Gradients and optimizer state are there from the first pass on.
        for _ in range(2):
            memory.reset_peak()
            optimizer.zero_grad(set_to_none=False)
            run().square().mean().backward()
            optimizer.step()
        return memory.peak().allocated

    def half():
        with torch.autocast("cuda", torch.bfloat16):
            return model(x)

    def checkpointed():
        y = x
        for layer in model.layers:
            y = checkpoint(layer, y, use_reentrant=False)
        return y

    plain = peak(lambda: model(x))
    kept = plain - cost.fixed
    saved = {"bf16": plain - peak(half), "checkpointing": plain - peak(checkpointed)}
    most = {"bf16": kept // 2, "checkpointing": kept * (cost.blocks - 1) // cost.blocks}
    assert saved["checkpointing"] <= most["checkpointing"] * 1.05, (saved, most)
    assert saved["checkpointing"] > 0.4 * most["checkpointing"], (saved, most)
    return f"activations {gpulease.text(kept)}; " + ", ".join(
        f"{name} saved {gpulease.text(saved[name])} (said: up to {gpulease.text(most[name])})" for name in saved
    )


@case("-m", "8GiB")
def leak() -> str:
    """Losses that are kept with their graphs are found, with the step that it began at and a hint."""
    gpulease, torch = modules()
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    told, losses = [], []
    watch = gpulease.LeakWatch(on_leak=told.append)
    for number in range(1, 121):
        optimizer.zero_grad(set_to_none=True)
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        if number >= 60:
            losses.append(loss + model(torch.randn(256, 1024, device="cuda")).mean())
        watch.step()
    assert len(told) == 1, told
    assert 58 <= told[0].since <= 63, told[0]
    assert "graph" in str(told[0]), told[0]
    quiet = []
    calm = gpulease.LeakWatch(on_leak=quiet.append)
    losses.clear()
    for _ in range(100):
        optimizer.zero_grad(set_to_none=True)
        model(torch.randn(256, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        calm.step()
    assert not quiet, quiet
    return str(told[0])


@case("-m", "4GiB", "--no-preload")
def pool() -> str:
    """Only the tensors of the pool are in the lease; they compute, go back, and are out of memory at its limit."""
    return _pool(preloaded=False)


@case("-m", "4GiB..6GiB")
def pool_under_preload() -> str:
    """The pool beside the preload library."""
    return _pool(preloaded=True)


def _pool(preloaded: bool) -> str:
    gpulease, torch = modules()
    outside = torch.ones(GIB // 4, device="cuda")
    before = gpulease.lease().held
    assert preloaded or before == 0, before
    pool = gpulease.mem_pool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.arange(GIB // 4, dtype=torch.float32, device="cuda")
    held = gpulease.lease().held - before
    assert held >= GIB and gpulease.pool_state().held >= GIB, (held, gpulease.pool_state())
    assert torch.allclose((inside * 2 + outside)[-3:].cpu(), torch.arange(GIB // 4 - 3, GIB // 4).float() * 2 + 1)
    weight = torch.nn.Parameter(inside)
    (weight * 3).sum().backward()
    assert weight.grad.sum().item() == 3 * weight.numel()
    try:
        with torch.cuda.use_mem_pool(pool):
            torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        trouble = gpulease.pool_state().trouble
        assert trouble, error
        print(gpulease.explain_out_of_memory(error))
    else:
        raise AssertionError("8 GiB came out of a lease of 4")
    assert not gpulease.lease().suspendable, "addresses of it are known, so it is pinned"
    del inside, weight
    gc.collect()
    torch.cuda.empty_cache()
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    wait(lambda: gpulease.pool_state().held == 0, "the pool gave its memory back")
    return f"{gpulease.text(held)} of the pool in the lease, and none after it; refused: {trouble}"


@case("-m", "8GiB")
def accumulation() -> str:
    """Pieces with their weights have the gradients of the whole batch."""
    gpulease, torch = modules()
    torch.manual_seed(5)
    model = torch.nn.Linear(512, 512).cuda().double()
    x = torch.randn(1000, 512, device="cuda", dtype=torch.double)
    model(x).square().mean().backward()
    whole = model.weight.grad.clone()
    model.zero_grad(set_to_none=True)
    pieces, at = gpulease.accumulation(1000, 96), 0
    for size, weight in zip(pieces.sizes, pieces.weights):
        (model(x[at : at + size]).square().mean() * weight).backward()
        at += size
    assert torch.allclose(model.weight.grad, whole, rtol=1e-10, atol=1e-14)
    return f"{pieces.steps} pieces of {pieces.sizes[0]} and {pieces.sizes[-1]}: the gradients of 1000 samples"


@case("-m", "2GiB..6GiB")
def cupy() -> str:
    """CuPy: the lease, and a callback that gives its pool back."""
    gpulease, cp = others("cupy")
    array = cp.ones(GIB // 2, dtype=cp.float64)
    assert float(array.sum()) == array.size
    full = gpulease.lease()
    assert full.held >= 4 * GIB, full
    del array
    with gpulease.on_pressure(lambda recall: cp.get_default_memory_pool().free_all_blocks()):
        cli("recall", f"L{full.id}")
        wait(lambda: gpulease.lease().held <= full.reserve, "the pool went back")
    explained(gpulease, lambda: cp.empty(32 * GIB, dtype=cp.uint8), "cupy.get_default_memory_pool()")
    return f"CuPy {cp.__version__}: held {gpulease.text(full.held)}, then {gpulease.text(gpulease.lease().held)}"


@case("-m", "2GiB..6GiB")
def cupy_memory() -> str:
    """CuPy's pool behind the package's protocol: search, estimate, leak and report."""
    gpulease, cp, mine = others("cupy", "cupy_memory")
    memory, ours = mine.CupyMemory(), gpulease.lease()

    def step(batch):
        x = cp.ones((batch, 1 << 20), dtype=cp.float32)
        y = x * 2
        assert float(y[-1, -1]) == 2.0

    found = gpulease.find_batch_size(step, 1, 4096, memory=memory)
    # Each sample is in both arrays.
    assert found.limited_by == "memory" and near(found.batch_size, found.budget / (8 * MIB), 0.1), found
    assert gpulease.lease().held_peak <= ours.reserve + 64 * MIB, gpulease.lease()
    said = gpulease.estimate(step, (2, 4, 8), up_to=64, memory=memory)
    memory.reset_peak()
    step(160)
    took = memory.peak().reserved
    assert said.lease_for(160) >= took and near(said.peak(160), took, 0.15), (said, said.peak(160), took)
    told, kept = [], []
    watch = gpulease.LeakWatch(memory, on_leak=told.append)
    for number in range(60):
        step(4)
        kept.extend([cp.ones(1 << 18, dtype=cp.float32)] * (number >= 20))
        watch.step()
    assert told and 18 <= told[0].since <= 23, told
    report = gpulease.memory_report(memory)
    print(report)
    assert report.framework.name == "CuPy" and 0 < report.framework.allocated <= report.lease.held, report
    return f"{found}; {said}; since step {told[0].since}"


@case("-m", "4GiB")
def cupy_phases() -> str:
    """Out of memory in the passes of a step that is written in CuPy: told where, and nothing of the step stays. Pieces with
    their weights have the gradient of the whole batch."""
    gpulease, cp, mine = others("cupy", "cupy_memory")
    from gpulease.trial import attempt

    memory = mine.CupyMemory()

    def forward(x, weight, more=0):
        return x @ weight, cp.ones(more, dtype=cp.uint8)

    def backward(x, error, more=0):
        return x.T @ error, cp.ones(more, dtype=cp.uint8)

    def step(batch, **too_much):
        x, weight = cp.ones((batch, 4096), dtype=cp.float32), cp.eye(4096, dtype=cp.float32)
        y, _ = forward(x, weight, too_much.get("forward", 0))
        gradient, _ = backward(x, y, too_much.get("backward", 0))
        weight -= gradient + cp.ones(too_much.get("optimizer", 0), dtype=cp.uint8).sum()

    assert attempt(memory, step, 64).fits
    for phase in ("forward", "backward", "optimizer"):
        trial = attempt(memory, lambda batch: step(batch, **{phase: 8 * GIB}), 64)
        assert not trial.fits and (phase in trial.where or phase == "optimizer"), (phase, trial)
        assert trial.left == 0, (phase, trial.left)
    x = cp.random.default_rng(5).standard_normal((1000, 64))
    whole, pieces, at = x.T @ x / 1000, gpulease.accumulation(1000, 96), 0
    sum_of_pieces = cp.zeros_like(whole)
    for size, weight in zip(pieces.sizes, pieces.weights):
        piece = x[at : at + size]
        sum_of_pieces += piece.T @ piece / size * weight
        at += size
    assert cp.allclose(sum_of_pieces, whole, rtol=1e-10, atol=1e-14)
    return f"nothing left after each; {pieces.steps} pieces: the gradient of 1000 samples"


@case("-m", "6GiB")
def jax() -> str:
    """JAX: the lease, and its error explained."""
    gpulease, j, jnp = others("jax", "jax.numpy")
    array = jnp.ones(GIB // 4, dtype=jnp.float32)
    assert float(array.sum()) == array.size
    print(gpulease.memory_report())
    held = gpulease.lease().held
    assert held >= GIB, held
    ask = lambda: jnp.ones(32 * GIB // 4, dtype=jnp.float32).block_until_ready()
    explained(gpulease, ask, "XLA_CLIENT_MEM_FRACTION")
    return f"JAX {j.__version__}: held {gpulease.text(held)}"


@case("-m", "4GiB")
def jax_memory() -> str:
    """JAX's memory behind the package's protocol: report, leak, and a batch in pieces."""
    gpulease, j, jnp, mine = others("jax", "jax.numpy", "jax_memory")
    memory, told, kept = mine.JaxMemory(), [], []
    watch = gpulease.LeakWatch(memory, on_leak=told.append)
    double = j.jit(lambda x: x * 2)
    for number in range(60):
        y = double(jnp.ones(1 << 20, dtype=jnp.float32))
        kept.extend([y] * (number >= 20))
        y.block_until_ready()
        watch.step()
    assert told and 18 <= told[0].since <= 23, told
    report = gpulease.memory_report(memory)
    print(report)
    assert report.framework.name == "JAX" and 0 < report.framework.allocated <= report.lease.held, report

    def loss(weights, x):
        return jnp.mean(jnp.square(x @ weights))

    x, weights = j.random.normal(j.random.key(5), (1000, 64)), jnp.eye(64)
    gradient = j.jit(j.grad(loss))
    with j.default_matmul_precision("highest"):
        whole, pieces, at = gradient(weights, x), gpulease.accumulation(1000, 96), 0
        sum_of_pieces = jnp.zeros_like(whole)
        for size, weight in zip(pieces.sizes, pieces.weights):
            sum_of_pieces += gradient(weights, x[at : at + size]) * weight
            at += size
    assert jnp.allclose(sum_of_pieces, whole, rtol=1e-4, atol=1e-6), abs(sum_of_pieces - whole).max()
    return f"since step {told[0].since}; {pieces.steps} pieces: the gradient of 1000 samples"


@case("-m", "2GiB..6GiB")
def jax_pressure() -> str:
    """JAX keeps what it took at its start: the call comes, and the program goes on."""
    gpulease, jnp = others("jax.numpy")
    array = jnp.ones(GIB // 8, dtype=jnp.float32)
    assert float(array.sum()) == array.size
    full = gpulease.lease()
    assert full.held > full.reserve, full
    seen = recalled(gpulease)
    assert float((array * 2).sum()) == 2 * array.size
    return f"{seen}; held {gpulease.text(full.held)}, then {gpulease.text(gpulease.lease().held)}"


# --- The broker and the rows ------------------------------------------------------------------------------------------


def wait(so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not so():
        if time.monotonic() > until:
            raise AssertionError(f"it does not come to it that {what}")
        time.sleep(0.01)


def cli(*arguments: str) -> str:
    done = subprocess.run(
        [os.environ["GPULEASE_TEST_CLI"], *arguments], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def inside(name: str) -> int:
    """Runs a case in this process, which is in its lease."""
    try:
        print(f"=> {CASES[name][0]()}")
    except Skip as why:
        print(f"=> {why}")
        return SKIPPED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def start_broker(programs: Path, folder: Path, device: str, *more: str) -> tuple[subprocess.Popen[bytes], Path]:
    socket, log = folder / "gpulease.sock", folder / "log"
    command = [str(programs / "gpuleased"), "--device", device, "--socket", str(socket), *more]
    broker = subprocess.Popen(command, stderr=log.open("wb"))
    until = time.monotonic() + PATIENCE
    while ": ready;" not in log.read_text():
        assert broker.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.02)
    return broker, socket


def path(package: Path) -> str:
    return os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])


def run_case(name: str, programs: Path, socket: Path, package: Path) -> int:
    environment = {**os.environ, "PYTHONPATH": path(package), "GPULEASE_TEST_CLI": str(programs / "gpulease")}
    command = [str(programs / "gpulease"), "--socket", str(socket), "run", "-q", *CASES[name][1], "-n", name]
    command += ["--", sys.executable, __file__, "--inside", name]
    return row(name, command, environment)


def run_units(programs: Path, folder: Path, package: Path, tests: Path) -> int:
    """The package's own tests, against a broker of host memory."""
    broker, socket = start_broker(programs, folder, "host:64MiB")
    environment = {**os.environ, "PYTHONPATH": path(package), "GPULEASE_TEST_CLI": str(programs / "gpulease")}
    command = [str(programs / "gpulease"), "--socket", str(socket), "run", "-q", "-m", "8MiB..32MiB", "-n", "python"]
    command += ["--", sys.executable, "-m", "unittest", "discover", "-t", str(tests.parent), "-s", str(tests)]
    try:
        return row("own-tests", command, environment)
    finally:
        broker.terminate()
        broker.wait(PATIENCE)


def row(name: str, command: list[str], environment: dict[str, str]) -> int:
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    said = (done.stdout + done.stderr).strip().splitlines() or [""]
    word = {0: "ok", SKIPPED: "skipped"}.get(done.returncode, "FAILED")
    summary = next((line[3:] for line in reversed(said) if line.startswith("=> ")), said[-1])
    print(f"{name:<20} {word:<8} {time.monotonic() - began:5.1f} s  {summary}", flush=True)
    if word == "FAILED" or "-v" in sys.argv:
        print("\n".join(f"    {line}" for line in said), flush=True)
    return done.returncode


def unpack(programs: Path, into: Path) -> Path:
    """The package out of its wheel; or as it is installed here."""
    wheels = sorted(programs.glob("gpulease-*.whl"))
    if not wheels:
        assert importlib.util.find_spec("gpulease"), f"no wheel in {programs}, and gpulease is not installed"
        return into
    zipfile.ZipFile(wheels[-1]).extractall(into)
    return into


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--programs", type=Path, default=Path(__file__).parent)
    arguments.add_argument("--inside", help=argparse.SUPPRESS)
    arguments.add_argument("--capacity", default="64GiB")
    arguments.add_argument("-v", action="store_true", help="all that the cases print")
    arguments.add_argument("cases", nargs="*")
    given = arguments.parse_args()
    if given.inside:
        return inside(given.inside)
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("package", "card", "host"):
            (folder / part).mkdir()
        package = unpack(given.programs, folder / "package")
        tests = given.programs / "python-tests" / "tests"
        if not given.cases and tests.is_dir():
            results.append(run_units(given.programs, folder / "host", package, tests))
        broker, socket = start_broker(given.programs, folder / "card", "cuda:0", "--capacity", given.capacity)
        try:
            results += [run_case(each, given.programs, socket, package) for each in given.cases or CASES]
        finally:
            broker.terminate()
            broker.wait(PATIENCE)
        errors = [line for line in (folder / "card" / "log").read_text().splitlines() if "ERROR" in line]
        print("\n".join(errors) if errors else "the broker logged no error")
    passed, skipped = results.count(0), results.count(SKIPPED)
    print(f"{passed} passed, {len(results) - passed - skipped} failed, {skipped} skipped")
    return int(bool(errors) or passed + skipped < len(results))


if __name__ == "__main__":
    sys.exit(main())

"""A job whose data fill most of its lease: `jax_turns.py SEED GIB STEPS`.

STEPS is a number, or seconds such as `6s`; it says how many steps they were. XLA runs what it compiled as CUDA graphs
where it sees fit.
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
from pace import paced

BLOCKS, WIDTH = 64, 1024


@partial(jax.jit, donate_argnums=0)
def fill(data, number, key):
    block = jax.random.normal(key, data.shape[1:], data.dtype)
    return jax.lax.dynamic_update_index_in_dim(data, block, number, 0)


@partial(jax.jit, donate_argnums=0)
def change(data, number):
    """One block, in its place."""
    block = jax.lax.dynamic_index_in_dim(data, number, keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(data, block * 1.0001, number, 0)


@jax.jit
def bits(data, number):
    """A sum that does not depend on its order."""
    return jax.lax.bitcast_convert_type(data[number], jnp.uint32).sum(dtype=jnp.uint32)


def loss_of(parameters, x):
    first, second = parameters
    return jnp.mean((jnp.tanh(x @ first) @ second - x) ** 2)


@partial(jax.jit, donate_argnums=0)
def step(parameters, data, number):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, data[number, :WIDTH])
    return [p - 0.01 * g for p, g in zip(parameters, gradients)], loss


def main(seed, gib, steps):
    rows = (gib << 30) // (4 * WIDTH * BLOCKS)
    keys = jax.random.split(jax.random.key(seed), BLOCKS + 2)
    data = jnp.zeros((BLOCKS, rows, WIDTH), dtype=jnp.float32)
    for number in range(BLOCKS):
        data = fill(data, number, keys[number])
    parameters = [
        jax.random.normal(keys[-1], (WIDTH, 4 * WIDTH)) * 0.02,
        jax.random.normal(keys[-2], (4 * WIDTH, WIDTH)) * 0.02,
    ]
    for number in paced(steps):
        parameters, loss = step(parameters, data, number % BLOCKS)
        # All of the data change, a little at a time.
        data = change(data, number % BLOCKS)
        if number % 10 == 0:
            loss.block_until_ready()
    sums = [int(bits(data, number)) for number in range(BLOCKS)]
    print(f"result loss={float(loss).hex()} data={','.join(map(str, sums))}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

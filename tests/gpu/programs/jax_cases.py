"""A small JAX program that knows nothing of a broker: `jax_cases.py train|over_budget`."""

import sys
import time

import jax
import jax.numpy as jnp


def main(case):
    stats = jax.devices()[0].memory_stats() or {}
    print(f"note bytes_limit={stats.get('bytes_limit')}")
    {"train": train, "over_budget": over_budget}[case]()
    ballast = jnp.ones(1 << 29, dtype=jnp.uint8) * 2
    ballast.block_until_ready()
    time.sleep(2.5)
    print(f"result ballast={int(ballast[:: 1 << 20].astype(jnp.int32).sum())}", flush=True)


def loss(parameters, x):
    first, second = parameters
    return jnp.mean((jnp.tanh(x @ first) @ second - x) ** 2)


@jax.jit
def step(parameters, key):
    x = jax.random.normal(key, (256, 512))
    value, gradient = jax.value_and_grad(loss)(parameters, x)
    return [p - 0.1 * g for p, g in zip(parameters, gradient)], value


def train(steps=20):
    keys = jax.random.split(jax.random.key(7), steps + 2)
    parameters = [jax.random.normal(keys[-1], (512, 1024)) * 0.02, jax.random.normal(keys[-2], (1024, 512)) * 0.02]
    kept = []
    for key in keys[:steps]:
        parameters, value = step(parameters, key)
        kept.append(float(value))
    print("result losses=" + ",".join(value.hex() for value in kept))


def over_budget():
    try:
        jnp.zeros(1 << 40, dtype=jnp.uint8).block_until_ready()
        print("result over=none")
    except Exception as error:  # the class is the library's own and has moved between releases
        word = "RESOURCE_EXHAUSTED" if "RESOURCE_EXHAUSTED" in str(error) else "other"
        print(f"result over={word}")
        print("note " + str(error).splitlines()[0][:150])
    train(5)


if __name__ == "__main__":
    main(sys.argv[1])

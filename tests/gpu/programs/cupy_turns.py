"""A job whose data fill most of its lease: `cupy_turns.py SEED GIB STEPS [async]`. Every other step has a replayed graph.

STEPS is a number, or seconds such as `6s`; it says how many steps they were.
"""

import sys

import cupy as cp
from pace import paced

BLOCKS, WIDTH = 64, 1024


def main(seed, gib, steps, pool="default"):
    if pool == "async":
        cp.cuda.set_allocator(cp.cuda.MemoryAsyncPool().malloc)
    cp.random.seed(int(seed))
    rows = (int(gib) << 30) // (4 * WIDTH * BLOCKS)
    data = cp.empty((BLOCKS, rows, WIDTH), dtype=cp.float32)
    for block in data:
        block[...] = cp.random.standard_normal(block.shape, dtype=cp.float32)
    first = cp.random.standard_normal((WIDTH, 4 * WIDTH), dtype=cp.float32) * 0.02
    second = cp.random.standard_normal((4 * WIDTH, WIDTH), dtype=cp.float32) * 0.02
    decayed = first[:]

    def decay():
        cp.multiply(decayed, cp.float32(0.9999), out=decayed)

    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        # What is recorded must have been compiled.
        decay()
        stream.begin_capture()
        decay()
        graph = stream.end_capture()
        for number in paced(steps):
            x = data[number % BLOCKS, :WIDTH]
            hidden = cp.maximum(x @ first, 0)
            error = hidden @ second - x
            back = (error @ second.T) * (hidden > 0)
            second -= 1e-5 * (hidden.T @ error)
            first -= 1e-5 * (x.T @ back)
            if number % 2:
                graph.launch(stream)
            # All of the data change, a little at a time.
            data[number % BLOCKS] *= cp.float32(1.0001)
            if number % 10 == 0:
                stream.synchronize()
        loss = float((error * error).mean())
        sums = [int(block.view(cp.uint32).sum(dtype=cp.uint64)) for block in data]
    print(f"result loss={loss.hex()} data={','.join(map(str, sums))}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

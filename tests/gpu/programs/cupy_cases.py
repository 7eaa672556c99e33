"""A small CuPy program that knows nothing of a broker: `cupy_cases.py default|async [over]`."""

import sys
import time

import cupy as cp


def main(pool):
    if pool == "async":
        cp.cuda.set_allocator(cp.cuda.MemoryAsyncPool().malloc)
    free, total = cp.cuda.runtime.memGetInfo()
    print(f"note total_bytes={total} free_bytes={free}")
    cp.random.seed(7)
    weights = cp.random.standard_normal((1024, 1024), dtype=cp.float32) * 0.01
    kept = []
    for _ in range(20):
        x = cp.random.standard_normal((512, 1024), dtype=cp.float32)
        error = x @ weights - x
        weights -= 1e-4 * (x.T @ error)
        kept.append(float((error * error).mean()))
    print("result losses=" + ",".join(value.hex() for value in kept))
    try:
        cp.empty(1 << 42, dtype=cp.uint8)
        print("result over=none")
    except cp.cuda.memory.OutOfMemoryError as error:
        print("result over=OutOfMemoryError")
        print("note " + str(error)[:150])
    ballast = cp.ones(2 << 30, dtype=cp.uint8)
    cp.cuda.Stream.null.synchronize()
    time.sleep(2.5)
    print(f"result ballast={int(ballast[:: 1 << 20].sum())}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

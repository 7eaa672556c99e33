#!/bin/sh
# Compiles training.cu to training.ptx. Needs nvcc of any CUDA toolkit from 10.2 on; no GPU.
#
# The version that nvcc writes at the top of its PTX is its own, which older drivers refuse. It is lowered to the
# oldest that has everything used here (6.4: CUDA 10.1, older than the memory calls gpulease needs); ptxas, where
# it is found, checks that by assembling the result.
set -eu
cd "$(dirname "$0")"

nvcc -ptx -arch=compute_75 -o training.raw.ptx training.cu
{
    # cksum: the POSIX check sum and the length in bytes.
    echo "// training.cu $(cksum < training.cu)"
    sed 's/^\.version .*/.version 6.4/' training.raw.ptx
} > training.ptx
rm training.raw.ptx
if command -v ptxas > /dev/null; then
    ptxas -arch=sm_75 -o /dev/null training.ptx
fi
head -n 1 training.ptx

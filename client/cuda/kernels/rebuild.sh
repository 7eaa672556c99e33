#!/bin/sh
# Compiles sums.cu to sums.ptx. Needs nvcc of any CUDA toolkit from 10.2 on; no GPU.
#
# The version that nvcc writes at the top of its PTX is its own, which older drivers refuse. It is lowered to the
# oldest that has everything used here (6.4: CUDA 10.1, older than the memory calls gpulease needs); ptxas, where
# it is found, checks that by assembling the result.
set -eu
cd "$(dirname "$0")"

nvcc -ptx -arch=compute_75 -o sums.raw.ptx sums.cu
{
    # cksum: the POSIX check sum and the length in bytes.
    echo "// sums.cu $(cksum < sums.cu)"
    sed 's/^\.version .*/.version 6.4/' sums.raw.ptx
} > sums.ptx
rm sums.raw.ptx
if command -v ptxas > /dev/null; then
    ptxas -arch=sm_75 -o /dev/null sums.ptx
fi
head -n 1 sums.ptx

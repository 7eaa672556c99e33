// Check sums of device memory, one of 64 bits for each piece.
//
// `sums.ptx` beside this file is what the library loads (the driver compiles it for the card), so neither building
// nor running needs a CUDA toolkit. After a change here run `just kernels`, which needs nvcc; a test compares the
// check sum in the first line of sums.ptx with this file.
//
// The sum is the wrapping sum of mixed(word + its index in its piece * GOLDEN), so that blocks and threads may add in
// any order; `sum_of_piece` in Rust is the same function. `mixed` is a bijection: one changed word always shows, more
// of them but for one chance in 2^64.

typedef unsigned long long u64;

static __device__ __forceinline__ u64 mixed(u64 x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    x ^= x >> 33;
    return x;
}

// Block b sums the words [b * piece, (b + 1) * piece) of `words`, as far as there are, into sums[b]. `words` and
// `piece` are even, `at` is aligned to 16 bytes, a block has a multiple of 32 and at most 1024 threads.
extern "C" __global__ void gpulease_sums(const ulonglong2* __restrict__ at, u64 words, u64 piece, u64* sums)
{
    const u64 golden = 0x9e3779b97f4a7c15ULL;
    const u64 begin = blockIdx.x * piece;
    const u64 length = (words - begin < piece ? words - begin : piece) / 2;
    const ulonglong2* mine = at + begin / 2;
    u64 sum = 0;
#pragma unroll 4
    for (u64 i = threadIdx.x; i < length; i += blockDim.x) {
        const ulonglong2 pair = mine[i];
        sum += mixed(pair.x + 2 * i * golden) + mixed(pair.y + (2 * i + 1) * golden);
    }
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    __shared__ u64 of_warp[32];
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        u64 all = 0;
        for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
            all += of_warp[warp];
        sums[blockIdx.x] = all;
    }
}

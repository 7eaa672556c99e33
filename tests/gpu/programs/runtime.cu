// A program of CUDA's runtime library, linked with it statically or not, that knows nothing of a broker. It takes memory
// in every way that the runtime has, works on it, and asks for more than there is.

#include <cstdio>
#include <unistd.h>

#include <cuda_runtime.h>

#define MUST(call)                                                                                    \
    do {                                                                                              \
        cudaError_t code = (call);                                                                    \
        if (code != cudaSuccess) {                                                                    \
            std::printf("result %s: %s\n", #call, cudaGetErrorName(code));                            \
            return 1;                                                                                 \
        }                                                                                             \
    } while (0)

constexpr size_t SIZE = size_t(256) << 20;

__device__ unsigned int variable[1 << 20];

__global__ void fill(unsigned int *at, size_t count, unsigned int seed) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        at[i] = unsigned(i) * 2654435761u + seed;
}

__global__ void sum(const unsigned int *at, size_t count, unsigned long long *total) {
    unsigned long long mine = 0;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        mine += at[i];
    atomicAdd(total, mine);
}

static int work(const char *way, void *memory, size_t bytes, unsigned int seed, unsigned long long *total) {
    MUST(cudaMemset(total, 0, sizeof *total));
    fill<<<256, 256>>>(static_cast<unsigned int *>(memory), bytes / 4, seed);
    sum<<<256, 256>>>(static_cast<unsigned int *>(memory), bytes / 4, total);
    unsigned long long said = 0;
    MUST(cudaMemcpy(&said, total, sizeof said, cudaMemcpyDeviceToHost));
    std::printf("result %s=%llu\n", way, said);
    return 0;
}

// How a call that wants more than there is goes; the error is not for the next call.
static const char *refused(cudaError_t code) {
    cudaGetLastError();
    return code == cudaSuccess ? "none" : cudaGetErrorName(code);
}

int main() {
    size_t free = 0, all = 0;
    MUST(cudaMemGetInfo(&free, &all));
    std::printf("note total_bytes=%zu free_bytes=%zu\n", all, free);
    unsigned long long *total = nullptr;
    MUST(cudaMalloc(&total, sizeof *total));

    unsigned int *plain = nullptr, *managed = nullptr, *ordered = nullptr, *pitched = nullptr, *named = nullptr;
    size_t pitch = 0;
    MUST(cudaMalloc(&plain, 4 * SIZE));
    MUST(cudaMallocPitch(&pitched, &pitch, 4096 - 100, SIZE / 4096));
    // Memory of the driver's own: a broker that holds the card leaves it little at a time.
    MUST(cudaMallocManaged(&managed, SIZE / 4));
    MUST(cudaMallocAsync(&ordered, SIZE, 0));
    MUST(cudaGetSymbolAddress(reinterpret_cast<void **>(&named), variable));
    cudaArray_t array = nullptr;
    cudaChannelFormatDesc floats = cudaCreateChannelDesc<float>();
    MUST(cudaMalloc3DArray(&array, &floats, make_cudaExtent(1024, 1024, 16)));

    if (work("plain", plain, 4 * SIZE, 1, total) || work("pitched", pitched, pitch * (SIZE / 4096), 2, total) ||
        work("managed", managed, SIZE / 4, 3, total) || work("ordered", ordered, SIZE, 4, total) ||
        work("variable", named, sizeof variable, 5, total))
        return 1;

    void *more = nullptr;
    std::printf("result over=%s\n", refused(cudaMalloc(&more, all)));
    std::printf("result over_async=%s\n", refused(cudaMallocAsync(&more, all, 0)));
    if (work("plain_again", plain, 4 * SIZE, 6, total))
        return 1;
    std::fflush(stdout);
    usleep(2500 * 1000);

    MUST(cudaFreeAsync(ordered, 0));
    MUST(cudaFreeArray(array));
    MUST(cudaFree(managed));
    MUST(cudaFree(pitched));
    MUST(cudaFree(plain));
    MUST(cudaDeviceReset());
    std::printf("result end\n");
    return 0;
}

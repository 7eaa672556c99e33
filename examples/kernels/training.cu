// Kernels of the training example, in float32.
//
// Every sum is taken by one thread in a fixed order and nothing is added atomically, so a run gives the same
// bits every time and wherever its memory came from. The network is small: one thread per result is enough.
//
// `training.ptx` beside this file is what the program loads (the driver compiles it for the card), so neither
// building nor running needs a CUDA toolkit. After a change here run `just kernels`, which needs nvcc; a test
// compares the check sum in the first line of training.ptx with this file.
//
// Matrices are row-major. A layer is one matrix of `inputs + 1` rows and `outputs` columns: the weights, and in
// the last row the biases.

typedef unsigned long long u64;
typedef unsigned int u32;

#define CLASSES 10
#define SIDE 8
#define PIXELS (SIDE * SIDE)

static __device__ u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// The same function of the same arguments as `dice::mix` in Rust (the finalizer of SplitMix64).
static __device__ u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

// Writes `rows / (8 * batch)` batches of augmented digits, each `batch` images and then `batch` classes. One
// thread writes one row of eight pixels; `rows` counts those. `first` is the number of the first sample.
// All values are multiples of 2^-10 below 2, so that host and card write the same bits.
extern "C" __global__ void augment(float* out, const float* images, const float* classes, u32 digits, u64 seed,
                                   u64 first, u32 batch, u64 rows) {
    u64 index = thread_index();
    if (index >= rows) return;
    u64 sample = index / SIDE;
    int y = (int)(index % SIDE);
    float* whole = out + sample / batch * ((u64)batch * (PIXELS + 1));
    u32 place = (u32)(sample % batch);

    u64 roll = mix(seed ^ mix(first + sample));
    u32 digit = (u32)(((roll >> 32) * digits) >> 32);
    int shift_x = (int)(((roll & 0xffff) * 3) >> 16) - 1;
    int shift_y = (int)((((roll >> 16) & 0xffff) * 3) >> 16) - 1;

    const float* image = images + (u64)digit * PIXELS;
    float* row = whole + (u64)place * PIXELS + y * SIDE;
    u64 noise = mix(roll + 1 + y);
    int from_y = y - shift_y;
    for (int x = 0; x < SIDE; x++) {
        int from_x = x - shift_x;
        bool inside = 0 <= from_x && from_x < SIDE && 0 <= from_y && from_y < SIDE;
        float ink = inside ? image[from_y * SIDE + from_x] : 0.0f;
        float grain = (float)((int)((noise >> (8 * x)) & 0xff) - 128) * (1.0f / 1024.0f);
        row[x] = fminf(fmaxf(ink + grain, 0.0f), 1.0f);
    }
    if (y == 0) whole[(u64)batch * PIXELS + place] = classes[digit];
}

// out[r][j] = bias[j] + sum over k of x[r][k] * weight[k][j], cut off below zero where `rectify` is 1.
extern "C" __global__ void forward(float* out, const float* x, const float* layer, u32 rows, u32 inputs,
                                   u32 outputs, u32 rectify) {
    u32 index = (u32)thread_index();
    if (index >= rows * outputs) return;
    u32 r = index / outputs, j = index % outputs;
    float sum = layer[inputs * outputs + j];
    for (u32 k = 0; k < inputs; k++) sum += x[r * inputs + k] * layer[k * outputs + j];
    out[index] = rectify && sum < 0.0f ? 0.0f : sum;
}

// For each row: adds its cross-entropy to losses[r], and replaces the ten scores by the derivative of the
// mean loss of all rows.
extern "C" __global__ void softmax_loss(float* scores, float* losses, const float* classes, u32 rows) {
    u32 r = (u32)thread_index();
    if (r >= rows) return;
    float* score = scores + r * CLASSES;
    int right = (int)classes[r];
    float highest = score[0];
    for (int c = 1; c < CLASSES; c++) highest = fmaxf(highest, score[c]);
    float sum = 0.0f;
    for (int c = 0; c < CLASSES; c++) sum += expf(score[c] - highest);
    losses[r] += logf(sum) - (score[right] - highest);
    for (int c = 0; c < CLASSES; c++) {
        float probability = expf(score[c] - highest) / sum;
        score[c] = (probability - (c == right ? 1.0f : 0.0f)) / (float)rows;
    }
}

// out[k][j] = sum over r of x[r][k] * delta[r][j]; in the last row (the biases) x is 1.
extern "C" __global__ void gradient(float* out, const float* x, const float* delta, u32 rows, u32 inputs,
                                    u32 outputs) {
    u32 index = (u32)thread_index();
    if (index >= (inputs + 1) * outputs) return;
    u32 k = index / outputs, j = index % outputs;
    float sum = 0.0f;
    for (u32 r = 0; r < rows; r++) {
        float input = k < inputs ? x[r * inputs + k] : 1.0f;
        sum += input * delta[r * outputs + j];
    }
    out[index] = sum;
}

// Takes delta back through a layer and through the rectifier before it: replaces activation[r][k] by
// sum over j of delta[r][j] * weight[k][j] where the activation is above zero, by 0 elsewhere.
extern "C" __global__ void backward(float* activation, const float* delta, const float* layer, u32 rows, u32 inputs,
                                    u32 outputs) {
    u32 index = (u32)thread_index();
    if (index >= rows * inputs) return;
    u32 r = index / inputs, k = index % inputs;
    float sum = 0.0f;
    for (u32 j = 0; j < outputs; j++) sum += delta[r * outputs + j] * layer[k * outputs + j];
    activation[index] = activation[index] > 0.0f ? sum : 0.0f;
}

// One step of Adam (Kingma and Ba 2015, algorithm 1). `rate` is the step size with both bias corrections in it.
extern "C" __global__ void adam(float* parameters, float* mean, float* square, const float* gradient, u32 count,
                                float rate, float epsilon) {
    u32 i = (u32)thread_index();
    if (i >= count) return;
    float g = gradient[i];
    float m = 0.9f * mean[i] + 0.1f * g;
    float v = 0.999f * square[i] + 0.001f * (g * g);
    mean[i] = m;
    square[i] = v;
    parameters[i] -= rate * m / (sqrtf(v) + epsilon);
}

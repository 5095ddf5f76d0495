// y = x * factor, 16 bytes a thread
__global__ void scale(const float4* x, float4* y, float factor, int n) {
    __shared__ float kept[32];
    if (threadIdx.x < 32) kept[threadIdx.x] = factor;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 value = x[i];
        value.x *= kept[i % 32];
        y[i] = value;
    }
}

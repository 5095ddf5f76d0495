// y [M, K] float16 = x [M, K] bfloat16 / scale [M], a power of two: a row's largest finite number becomes 2^15
// and more, up to 65280. Exact but for what is 2^-32 of that and less, off by 2^-40 of it at most; inf and NaN
// stay. A block a row, which it reads twice, the second time from the cache.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace bfloat16 {

constexpr int THREADS = 256, WIDTH = 8;

// 8 numbers of a row from `column` on, 0 beyond it
__device__ inline uint4 load(const uint16_t* row, int column, int columns, bool aligned) {
  if (aligned && column + WIDTH <= columns) return *reinterpret_cast<const uint4*>(row + column);
  uint32_t words[WIDTH / 2] = {};
#pragma unroll
  for (int i = 0; i < WIDTH; i++)
    if (column + i < columns) words[i / 2] |= static_cast<uint32_t>(row[column + i]) << (i % 2 * 16);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// the larger magnitude of either half; inf and NaN count as 0
__device__ inline uint32_t finite(uint32_t two) {
  const uint32_t magnitude = two & 0x7fff7fff;
  return magnitude & ~__vcmpgeu2(magnitude, 0x7f807f80);
}

// as two factors, for their product may be no float
__device__ inline uint32_t halved(uint32_t two, float first, float second) {
  const float low = __uint_as_float(two << 16) * first * second;
  const float high = __uint_as_float(two & 0xffff0000) * first * second;
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// pitches in elements; y's is a multiple of 8 and so many columns are written
__global__ inline void __launch_bounds__(THREADS)
    narrow(const uint16_t* x, int64_t x_pitch, uint16_t* y, int64_t y_pitch, float* scale, int columns) {
  // programmatic dependent launch: the next kernel may start; x is written by the previous one
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
  __shared__ uint32_t tops[THREADS / 32];
  const uint16_t* const row = x + blockIdx.x * x_pitch;
  const bool aligned = reinterpret_cast<uint64_t>(row) % 16 == 0;
  uint32_t two = 0;
  for (int column = threadIdx.x * WIDTH; column < columns; column += THREADS * WIDTH) {
    const uint4 v = load(row, column, columns, aligned);
    two = __vmaxu2(__vmaxu2(two, finite(v.x)), finite(v.y));
    two = __vmaxu2(__vmaxu2(two, finite(v.z)), finite(v.w));
  }
  uint32_t top = __reduce_max_sync(~0u, max(two >> 16, two & 0xffff));
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) top = max(top, tops[i]);
  const int exponent = max(1, static_cast<int>(top >> 7));  // biased by 127; 1: of subnormal ones, too
  const int by = top ? 142 - exponent : 0, first = min(by, 100);
  if (threadIdx.x == 0) scale[blockIdx.x] = ldexpf(1.f, -by);
  const float factors[2] = {__uint_as_float((first + 127) << 23), __uint_as_float((by - first + 127) << 23)};
  for (int column = threadIdx.x * WIDTH; column < columns; column += THREADS * WIDTH) {
    const uint4 v = load(row, column, columns, aligned);
    *reinterpret_cast<uint4*>(y + blockIdx.x * y_pitch + column) =
        make_uint4(halved(v.x, factors[0], factors[1]), halved(v.y, factors[0], factors[1]),
                   halved(v.z, factors[0], factors[1]), halved(v.w, factors[0], factors[1]));
  }
}

// y begins at 16 bytes. Returns a cudaError_t.
inline int over_power_of_two(const void* x, int64_t x_pitch, void* y, int64_t y_pitch, void* scale, int rows,
                             int columns, cudaStream_t stream) {
  cudaLaunchAttribute pdl;
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(rows);
  config.blockDim = dim3(THREADS);
  config.stream = stream;
  config.attrs = &pdl;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, narrow, static_cast<const uint16_t*>(x), x_pitch,
                            static_cast<uint16_t*>(y), y_pitch, static_cast<float*>(scale), columns);
}

}  // namespace bfloat16

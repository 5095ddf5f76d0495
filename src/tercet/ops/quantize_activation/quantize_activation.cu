// quantize_activation: rows of 16-bit numbers to one-byte codes, exact to the bit.
//
// A block holds a row in registers: loads, a barrier for the largest magnitude, codes, a barrier for
// their sum. Blocks of many rows share a multiprocessor, so some load while others compute. Rows that
// leave no room for a second block stream through one by row_stream.cuh instead: one barrier a row
// exchanges the warps' maxima, and the sums of codes go with the next row's. 7 instructions an element
// (int8), 9 (fp8):
//
// - maximum of magnitudes on pairs of 16-bit numbers, NaN kept;
// - the quotient: a product with the correctly rounded reciprocal and one correction by fused
//   multiply-add. For x of up to 11 significant bits, which both types have, that is the IEEE
//   quotient: tried with all 2^10 x and all 2^23 scales, of which
//   tests/ops/test_quantize_activation_cuda.py repeats a part;
// - no clamp: with a normal scale no quotient rounds beyond the limit;
// - sums of codes: dp4a; for fp8 in float32, exact, as 64 codes of 448 in units of 2^-9 are less
//   than 2^24 units.
//
// Rows with a very small, very large or no usable scale take IEEE divisions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernel/device/row_stream.cuh"

using row_stream::MAX_STAGES;
using row_stream::MAX_WARPS;
using row_stream::WarpShare;

constexpr int HELD_WARPS = 16;  // at most, of a row that one block holds
constexpr int STREAMED_VECTORS = 8;
constexpr float SMALL = 0x1p-64f, BIG = 0x1p64f;
// adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits
constexpr float TO_INTEGER = 12582912.f;
constexpr float UNITS = 512.f;  // e4m3 numbers are multiples of 2^-9

__device__ __forceinline__ float2 floats(__nv_bfloat162 v) { return __bfloat1622float2(v); }
__device__ __forceinline__ float2 floats(__half2 v) { return __half22float2(v); }
__device__ __forceinline__ float larger(__nv_bfloat162 v) {
  return __bfloat162float(__hmax_nan(v.x, v.y));
}
__device__ __forceinline__ float larger(__half2 v) { return __half2float(__hmax_nan(v.x, v.y)); }

struct Scale {
  float value, inverse;
  bool plain, usable;
  // from the bits of the row's largest magnitude
  __device__ Scale(uint32_t bits, float limit) {
    value = __fdiv_rn(__uint_as_float(bits), limit);
    plain = value >= SMALL && value <= BIG;
    usable = value > 0.f && value < INFINITY;
    inverse = __frcp_rn(plain ? value : 1.f);
  }
  template <bool PLAIN> __device__ __forceinline__ float ratio(float x, float limit) const {
    if (!PLAIN) return usable ? fminf(fmaxf(__fdiv_rn(x, value), -limit), limit) : 0.f;
    const float q = __fmul_rn(x, inverse);
    return __fmaf_rn(__fmaf_rn(q, -value, x), inverse, q);
  }
};

struct Int8 {
  static constexpr float LIMIT = 127.f;
  int total = 0;
  // four codes, and their sum into the total
  __device__ __forceinline__ uint32_t encode(float a, float b, float c, float d) {
    const uint32_t low =
        __byte_perm(__float_as_uint(a + TO_INTEGER), __float_as_uint(b + TO_INTEGER), 0x0040);
    const uint32_t high =
        __byte_perm(__float_as_uint(c + TO_INTEGER), __float_as_uint(d + TO_INTEGER), 0x0040);
    const uint32_t codes = __byte_perm(low, high, 0x5410);
    total = __dp4a(static_cast<int>(codes), 0x01010101, total);
    return codes;
  }
  __device__ __forceinline__ int units() const { return total; }
  static __device__ __forceinline__ uint32_t row_sum(int64_t units) {
    return static_cast<uint32_t>(units);
  }
};

struct Fp8 {
  static constexpr float LIMIT = 448.f;
  float total = 0.f;
  static __device__ __forceinline__ uint32_t pair(float low, float high) {
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
  }
  static __device__ __forceinline__ float2 values(uint32_t codes) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
    return __half22float2(*reinterpret_cast<const __half2*>(&halves));
  }
  __device__ __forceinline__ uint32_t encode(float a, float b, float c, float d) {
    const uint32_t low = pair(a, b), high = pair(c, d);
    const float2 first = values(low), second = values(high);
    total += first.x;
    total += first.y;
    total += second.x;
    total += second.y;
    const uint32_t codes = __byte_perm(low, high, 0x5410);
    // 0x7f + magnitude has a byte's top bit set but for zeros, whose sign is dropped
    return codes & (((codes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | 0x7f7f7f7fu);
  }
  __device__ __forceinline__ int units() const { return static_cast<int>(total * UNITS); }
  static __device__ __forceinline__ uint32_t row_sum(int64_t units) {
    return __float_as_uint(__ll2float_rn(units) * (1.f / UNITS));
  }
};

template <typename Pair, int VECTORS>
__device__ __forceinline__ uint32_t largest_of(const uint4 (&held)[VECTORS]) {
  Pair top = __habs2(*reinterpret_cast<const Pair*>(&held[0]));
#pragma unroll
  for (int i = 0; i < VECTORS; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
      top = __hmax2_nan(top, __habs2(reinterpret_cast<const Pair*>(&held[i])[j]));
  return __reduce_max_sync(~0u, __float_as_uint(larger(top)));
}

template <typename Pair, typename Element, bool PLAIN, int VECTORS, typename Share>
__device__ __forceinline__ int encode(const uint4 (&held)[VECTORS], const Scale& scale,
                                      const Share& share, uint2* codes) {
  Element element;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const Pair* pairs = reinterpret_cast<const Pair*>(&held[i]);
    uint32_t words[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const float2 one = floats(pairs[2 * j]), two = floats(pairs[2 * j + 1]);
      words[j] = element.encode(scale.ratio<PLAIN>(one.x, Element::LIMIT),
                                scale.ratio<PLAIN>(one.y, Element::LIMIT),
                                scale.ratio<PLAIN>(two.x, Element::LIMIT),
                                scale.ratio<PLAIN>(two.y, Element::LIMIT));
    }
    if (share.inside(i)) codes[32 * i] = make_uint2(words[0], words[1]);
  }
  return element.units();
}

template <typename Pair, typename Element, int VECTORS>
__global__ void __launch_bounds__(32 * MAX_WARPS)
    quantize_streamed(const void* x, uint2* codes, float* scales, uint32_t* sums, int rows,
                      int units, int64_t stride_bytes, int stages) {
  extern __shared__ __align__(128) uint4 memory[];
  __shared__ uint64_t barriers[MAX_WARPS * MAX_STAGES];
  __shared__ uint32_t largest[2][MAX_WARPS];
  __shared__ int parts[2][MAX_WARPS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  WarpShare<VECTORS> share(x, stride_bytes, rows, units, stages, memory, barriers);
  // one warp adds up the parts of the row before
  const auto finish = [&](int row, int side) {
    if (warp) return;
    // 16 bits of each are added apart: 32 warps of 2^29 units exceed an int
    const int slice = lane < warps ? parts[side][lane] : 0;
    const int64_t high = __reduce_add_sync(~0u, slice >> 16);
    const int64_t low = __reduce_add_sync(~0u, slice & 0xffff);
    if (lane == 0) sums[row] = Element::row_sum(high * 65536 + low);
  };

  int side = 0, row = blockIdx.x;
  for (; row < rows; row += gridDim.x, side ^= 1) {
    uint4 held[VECTORS];
    share.take(held);
    const uint32_t most = largest_of<Pair, VECTORS>(held);
    share.taken();
    if (lane == 0) largest[side][warp] = most;
    __syncthreads();
    const Scale scale(__reduce_max_sync(~0u, lane < warps ? largest[side][lane] : 0u),
                      Element::LIMIT);
    if (threadIdx.x == 0) scales[row] = scale.value;
    if (row != blockIdx.x) finish(row - gridDim.x, side ^ 1);
    uint2* out = codes + static_cast<int64_t>(row) * units + share.unit(0);
    const int total = scale.plain ? encode<Pair, Element, true, VECTORS>(held, scale, share, out)
                                  : encode<Pair, Element, false, VECTORS>(held, scale, share, out);
    const int slice = __reduce_add_sync(~0u, total);
    if (lane == 0) parts[side][warp] = slice;
  }
  __syncthreads();
  finish(row - gridDim.x, side ^ 1);
}

// the units that a lane holds of the one row of its block
template <int VECTORS> struct Held {
  int first, units;
  __device__ explicit Held(int units)
      : first(threadIdx.x / 32 * 32 * VECTORS + threadIdx.x % 32), units(units) {}
  __device__ __forceinline__ int unit(int i) const { return first + 32 * i; }
  __device__ __forceinline__ bool inside(int i) const { return unit(i) < units; }
};

// Loads and stores carry no hint: with loads that shall be evicted first, or not kept in the L1, and
// plain stores, rows of 4096 and 8192 took 9 % longer on an H200.
template <typename Pair, typename Element, int VECTORS>
__global__ void __launch_bounds__(32 * HELD_WARPS, VECTORS == 4 ? 3 : 2)
    quantize_held(const void* x, uint2* codes, float* scales, uint32_t* sums, int units,
                  int64_t stride_bytes) {
  __shared__ uint32_t largest[HELD_WARPS];
  __shared__ int parts[HELD_WARPS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int64_t row = blockIdx.x;
  const Held<VECTORS> share(units);
  const auto* in = reinterpret_cast<const uint4*>(static_cast<const char*>(x) + row * stride_bytes);
  uint4 held[VECTORS];
#pragma unroll
  for (int i = 0; i < VECTORS; i++)
    held[i] = share.inside(i) ? in[share.unit(i)] : make_uint4(0, 0, 0, 0);
  const uint32_t most = largest_of<Pair, VECTORS>(held);
  if (lane == 0) largest[warp] = most;
  __syncthreads();
  const Scale scale(__reduce_max_sync(~0u, lane < warps ? largest[lane] : 0u), Element::LIMIT);
  uint2* out = codes + row * units + share.first;
  const int total = scale.plain ? encode<Pair, Element, true, VECTORS>(held, scale, share, out)
                                : encode<Pair, Element, false, VECTORS>(held, scale, share, out);
  const int slice = __reduce_add_sync(~0u, total);
  if (lane == 0) parts[warp] = slice;
  __syncthreads();
  if (threadIdx.x) return;
  int64_t sum = 0;
  for (int w = 0; w < warps; w++) sum += parts[w];
  scales[row] = scale.value;
  sums[row] = Element::row_sum(sum);
}

template <typename Pair, typename Element, int VECTORS>
int launch_held(const void* x, void* codes, float* scales, void* sums, int rows, int k,
                int64_t stride_bytes, int warps, void* stream) {
  if (warps > HELD_WARPS) return cudaErrorInvalidConfiguration;
  quantize_held<Pair, Element, VECTORS>
      <<<rows, 32 * warps, 0, static_cast<cudaStream_t>(stream)>>>(
          x, static_cast<uint2*>(codes), scales, static_cast<uint32_t*>(sums), k / 8, stride_bytes);
  return cudaGetLastError();
}

template <typename Pair, typename Element>
int launch_streamed(const void* x, void* codes, float* scales, void* sums, int rows, int k,
                    int64_t stride_bytes, int warps, int stages, void* stream) {
  const int bytes = row_stream::slot_bytes(STREAMED_VECTORS, warps, stages);
  int blocks;
  const auto kernel = quantize_streamed<Pair, Element, STREAMED_VECTORS>;
  const cudaError_t error = row_stream::grid_of(kernel, rows, 32 * warps, bytes, &blocks);
  if (error != cudaSuccess) return error;
  kernel<<<blocks, 32 * warps, bytes, static_cast<cudaStream_t>(stream)>>>(
      x, static_cast<uint2*>(codes), scales, static_cast<uint32_t*>(sums), rows, k / 8,
      stride_bytes, stages);
  return cudaGetLastError();
}

// x [rows, k] of bfloat16 (else float16), k a multiple of 8, rows 16-byte aligned; fp8: e4m3 (else
// int8). 256 * vectors * warps >= k. stages 0: a block of up to 16 warps holds a row, vectors 4 or 8;
// else how many rows are in flight to a block, with 8 vectors. Returns a cudaError_t.
extern "C" int tercet_quantize(int bfloat16, int fp8, const void* x, void* codes, float* scales,
                               void* sums, int rows, int k, int64_t stride_bytes, int vectors,
                               int warps, int stages, void* stream) {
#define HELD(PAIR, ELEMENT, VECTORS)                                                           \
  launch_held<PAIR, ELEMENT, VECTORS>(x, codes, scales, sums, rows, k, stride_bytes, warps, stream)
#define LAUNCH(PAIR, ELEMENT)                                                                   \
  if (stages)                                                                                   \
    return launch_streamed<PAIR, ELEMENT>(x, codes, scales, sums, rows, k, stride_bytes, warps, \
                                          stages, stream);                                      \
  return vectors == 4 ? HELD(PAIR, ELEMENT, 4) : HELD(PAIR, ELEMENT, 8)
  if (bfloat16 && fp8) { LAUNCH(__nv_bfloat162, Fp8); }
  if (bfloat16) { LAUNCH(__nv_bfloat162, Int8); }
  if (fp8) { LAUNCH(__half2, Fp8); }
  LAUNCH(__half2, Int8);
}

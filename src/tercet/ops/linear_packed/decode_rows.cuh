// Rows of x into shared memory: a row of `width` columns (a multiple of 32, zero past the end of x)
// every `stride` bytes, so that eight rows lie in different banks. Copied as they are; or rows of
// floats become int8 codes by kernel/device/row_codes.py.
#pragma once
#include "decode_machine.cuh"

struct Rows {
  const void* x;    // element [m, k] at m * pitch + k
  int64_t pitch;    // elements
  int type;         // 0 float32, 1 float16, 2 bfloat16, 3 int8
  int count;        // rows
  int first, end;   // columns to take: [first, end), cut at the end of x
  int width;        // columns staged
  int stride;       // bytes from row to row in shared memory
};

__device__ __forceinline__ bool lies_well(const Rows& rows, int bytes) {
  return ((reinterpret_cast<uint64_t>(rows.x) | (rows.pitch * bytes)) & 15) == 0;
}

// a warp copies its columns as they are, in elements of X
template <class X> __device__ __forceinline__ void stage(const Rows& rows, unsigned char* to) {
  constexpr int EACH = 16 / sizeof(X);
  const int lane = threadIdx.x % 32;
  const X* x = static_cast<const X*>(rows.x);
  const bool well = lies_well(rows, sizeof(X));
  for (int m = 0; m < rows.count; m++) {
    for (int k = lane * EACH; k < rows.width; k += 32 * EACH) {
      X* there = reinterpret_cast<X*>(to + m * rows.stride) + k;
      const X* from = x + m * rows.pitch + rows.first + k;
      const int left = min(EACH, max(0, rows.end - rows.first - k));
      if (well) {
        copy_async(shared_address(there), left > 0 ? from : x, left * sizeof(X));
      } else {
#pragma unroll 1
        for (int j = 0; j < EACH; j++) there[j] = j < left ? from[j] : X(0);
      }
    }
  }
}

// eight columns from `first` + k on of row m as floats; zero past the end
__device__ __forceinline__ void eight(const Rows& rows, bool well, int m, int k, float (&v)[8]) {
  const int left = rows.end - rows.first - k;
  const int64_t at = m * rows.pitch + rows.first + k;
  if (rows.type != 0 && well && left >= 8) {
    const uint4 raw = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows.x) + at);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 two =
          rows.type == 1 ? __half22float2(reinterpret_cast<const __half2&>(words[j]))
                         : __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(words[j]));
      v[2 * j] = two.x, v[2 * j + 1] = two.y;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] = j < left ? number_at(rows.x, at + j, rows.type) : 0.f;
}

// largest[m], the bits of the largest |x| of row m, by all of the block; must be zero before.
// A NaN has larger bits than any number, so it stays.
__device__ __forceinline__ void find_largest(const Rows& rows, uint32_t* largest) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int chunks = (rows.width + 255) / 256;
  const bool well = lies_well(rows, bytes_of(rows.type));
  uint32_t top = 0;
  int held = -1;
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < rows.count * chunks; i += warps) {
    const int m = i / chunks, k = (i - m * chunks) * 256 + lane * 8;
    if (m != held) {
      if (held >= 0) {
        top = __reduce_max_sync(~0u, top);
        if (lane == 0) atomicMax(&largest[held], top);
      }
      held = m, top = 0;
    }
    float v[8];
    eight(rows, well, m, k, v);
#pragma unroll
    for (int j = 0; j < 8; j++) top = max(top, __float_as_uint(v[j]) & 0x7fffffffu);
  }
  if (held < 0) return;
  top = __reduce_max_sync(~0u, top);
  if (lane == 0) atomicMax(&largest[held], top);
}

// round(v / scale): the quotient rounded to float32 first, as the definition has it. With the
// reciprocal rounded to nearest, one correction by the exact remainder gives that quotient; where
// something may be subnormal the division itself is taken.
struct Coder {
  float scale, reciprocal;
  bool usable, ordinary;
  __device__ explicit Coder(float scale) : scale(scale) {
    usable = scale > 0.f && scale < INFINITY;
    ordinary = scale > 0x1p-60f && scale < 0x1p60f;
    reciprocal = __frcp_rn(usable ? scale : 1.f);
  }
  __device__ __forceinline__ uint32_t code(float v) const {
    const float near = __fmul_rn(v, reciprocal);
    const float ratio = __fmaf_rn(__fmaf_rn(-near, scale, v), reciprocal, near);
    // 1.5 * 2^23 leaves the rounded integer in the low bits
    return __float_as_uint(__fadd_rn(ratio, 12582912.f)) & 0xffu;
  }
  __device__ __forceinline__ uint32_t slow_code(float v) const {
    if (!usable) return 0;
    const float rounded = rintf(__fdiv_rn(v, scale));
    return static_cast<uint32_t>(static_cast<int>(fminf(fmaxf(rounded, -127.f), 127.f))) & 0xffu;
  }
};

// int8 codes of a warp's columns of float rows whose scales are known
__device__ __forceinline__ void stage_codes(const Rows& rows, const float* scale, unsigned char* to) {
  const bool well = lies_well(rows, bytes_of(rows.type));
#pragma unroll 1
  for (int m = 0; m < rows.count; m++) {
    const Coder coder(scale[m]);
#pragma unroll 1
    for (int k = threadIdx.x % 32 * 8; k < rows.width; k += 256) {
      float v[8];
      eight(rows, well, m, k, v);
      uint32_t words[2] = {0, 0};
      if (coder.ordinary) {
#pragma unroll
        for (int j = 0; j < 8; j++) words[j / 4] |= coder.code(v[j]) << (8 * (j % 4));
      } else {
#pragma unroll
        for (int j = 0; j < 8; j++) words[j / 4] |= coder.slow_code(v[j]) << (8 * (j % 4));
      }
      *reinterpret_cast<uint2*>(to + m * rows.stride + k) = make_uint2(words[0], words[1]);
    }
  }
}

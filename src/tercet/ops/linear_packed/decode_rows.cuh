// Rows of x into shared memory, in the order in which Unit reads them: a row of `width` columns (a
// multiple of 32, zero past the end of x) every `stride` bytes, so that eight rows lie in different
// banks. int8 rows are copied, bfloat16 and float16 rows are split into odd and even columns, and
// rows of floats become int8 codes by kernel/device/row_codes.py.
#pragma once
#include "decode_machine.cuh"

struct Rows {
  const void* x;    // element [m, k] at m * pitch + k
  int64_t pitch;    // elements
  int type;         // 0 float32, 1 float16, 2 bfloat16, 3 int8
  int count;        // rows
  int first, end;   // columns of this block: [first, end), cut at the end of x
  int width;        // columns staged
  int stride;       // bytes from row to row in shared memory
};

__device__ __forceinline__ bool lies_well(const Rows& rows, int bytes) {
  return ((reinterpret_cast<uint64_t>(rows.x) | (rows.pitch * bytes)) & 15) == 0;
}

__device__ __forceinline__ void stage(const Rows& rows, unsigned char* to, int8_t) {
  const int vectors = rows.width / 16;
  const int8_t* x = static_cast<const int8_t*>(rows.x);
  const bool well = lies_well(rows, 1);
  for (int i = threadIdx.x; i < rows.count * vectors; i += blockDim.x) {
    const int m = i / vectors, k = (i - m * vectors) * 16;
    unsigned char* there = to + m * rows.stride + k;
    const int8_t* from = x + m * rows.pitch + rows.first + k;
    const int left = min(16, max(0, rows.end - rows.first - k));
    if (well) {
      copy_async(shared_address(there), left > 0 ? from : x, left);
    } else {
#pragma unroll 1
      for (int j = 0; j < 16; j++) there[j] = j < left ? from[j] : 0;
    }
  }
}

// 16-bit floats: of every 16 columns first the odd ones, then the even ones
template <class X>
__device__ __forceinline__ void stage(const Rows& rows, unsigned char* to, X) {
  const int pieces = rows.width / 16;
  const uint16_t* x = static_cast<const uint16_t*>(rows.x);
  const bool well = lies_well(rows, 2);
#pragma unroll 1
  for (int i = threadIdx.x; i < rows.count * pieces; i += blockDim.x) {
    const int m = i / pieces, k = (i - m * pieces) * 16;
    const uint16_t* from = x + m * rows.pitch + rows.first + k;
    const int left = min(16, rows.end - rows.first - k);
    unsigned char* there = to + m * rows.stride + 2 * k;
    if (!(well && left >= 16)) {
#pragma unroll 1
      for (int j = 0; j < 16; j++)
        reinterpret_cast<uint16_t*>(there)[(j % 2 ? 0 : 8) + j / 2] = j < left ? from[j] : 0;
      continue;
    }
    // eight columns give half of the odd ones and half of the even ones
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
      const uint4 w = reinterpret_cast<const uint4*>(from)[half];
      uint2* at = reinterpret_cast<uint2*>(there) + half;
      at[0] = make_uint2(__byte_perm(w.x, w.y, 0x7632), __byte_perm(w.z, w.w, 0x7632));
      at[2] = make_uint2(__byte_perm(w.x, w.y, 0x5410), __byte_perm(w.z, w.w, 0x5410));
    }
  }
}

// eight columns from k on (of this block) of row m as floats; zero past the end
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

// largest[m], the bits of the largest |x| of row m of this block's columns; must be zero before.
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

// int8 codes of float rows whose scales are known
__device__ __forceinline__ void stage_codes(const Rows& rows, const float* scale, unsigned char* to) {
  const int pieces = rows.width / 8;
  const bool well = lies_well(rows, bytes_of(rows.type));
  int held = -1;
  Coder coder(0.f);
#pragma unroll 1
  for (int i = threadIdx.x; i < rows.count * pieces; i += blockDim.x) {
    const int m = i / pieces, k = (i - m * pieces) * 8;
    if (m != held) coder = Coder(scale[m]), held = m;
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

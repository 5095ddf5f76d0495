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

// 16 bytes of a row of 16-bit floats, which lies well, as floats
__device__ __forceinline__ void widen(const uint4& raw, int type, float (&v)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] = number_of(words[j / 2] >> (16 * (j % 2)) & 0xffffu, type);
}

// largest[m], the bits of the largest |x| of row m, by all of the block; must be zero before.
// A NaN has larger bits than any number, so it stays. Several loads are under way at a time.
__device__ __forceinline__ void find_largest(const Rows& rows, uint32_t* largest) {
  const bool well = rows.type != 0 && lies_well(rows, 2);
  const int vectors = well ? rows.end / 8 : 0;
#pragma unroll 1
  for (int m = 0; m < rows.count; m++) {
    const uint4* from =
        reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows.x) + m * rows.pitch);
    uint32_t pair = 0;
#pragma unroll 1
    for (int v = threadIdx.x; v < vectors; v += 4 * blockDim.x) {
      uint4 raw[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int at = v + i * blockDim.x;
        raw[i] = at < vectors ? from[at] : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        pair = __vmaxu2(pair, __vmaxu2(raw[i].x & 0x7fff7fffu, raw[i].y & 0x7fff7fffu));
        pair = __vmaxu2(pair, __vmaxu2(raw[i].z & 0x7fff7fffu, raw[i].w & 0x7fff7fffu));
      }
    }
    uint32_t top = __float_as_uint(number_of(max(pair >> 16, pair & 0xffffu), rows.type));
    if (!vectors) top = 0;
#pragma unroll 4
    for (int k = vectors * 8 + threadIdx.x; k < rows.end; k += blockDim.x)
      top = max(top, __float_as_uint(number_at(rows.x, m * rows.pitch + k, rows.type)) & 0x7fffffffu);
    top = __reduce_max_sync(~0u, top);
    if (threadIdx.x % 32 == 0) atomicMax(&largest[m], top);
  }
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

// int8 codes of a warp's columns of float rows whose scales are known, eight columns a lane
__device__ __forceinline__ void stage_codes(const Rows& rows, const float* scale, unsigned char* to) {
  const bool well = rows.type != 0 && lies_well(rows, 2);
  const int lane = threadIdx.x % 32, chunks = rows.width / 256 + (rows.width % 256 > 0);
  constexpr int AT_ONCE = 2;
#pragma unroll 1
  for (int first = 0; first < rows.count * chunks; first += AT_ONCE) {
    uint4 raw[AT_ONCE];
    int row[AT_ONCE], column[AT_ONCE], left[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      row[i] = (first + i) / chunks, column[i] = ((first + i) % chunks * 32 + lane) * 8;
      left[i] = row[i] < rows.count && column[i] < rows.width ? rows.end - rows.first - column[i] : -8;
      if (well && left[i] >= 8)
        raw[i] = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows.x) +
                                                 row[i] * rows.pitch + rows.first + column[i]);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      if (row[i] >= rows.count || column[i] >= rows.width) continue;
      const Coder coder(scale[row[i]]);
      float v[8];
      if (well && left[i] >= 8) {
        widen(raw[i], rows.type, v);
      } else {
        const int64_t at = row[i] * rows.pitch + rows.first + column[i];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = j < left[i] ? number_at(rows.x, at + j, rows.type) : 0.f;
      }
      uint32_t words[2] = {0, 0};
      if (coder.ordinary) {
#pragma unroll
        for (int j = 0; j < 8; j++) words[j / 4] |= coder.code(v[j]) << (8 * (j % 4));
      } else {
#pragma unroll 1
        for (int j = 0; j < 8; j++) {
          const uint32_t code = coder.slow_code(v[0]);
          words[0] = words[0] >> 8 | words[1] << 24, words[1] = words[1] >> 8 | code << 24;
#pragma unroll
          for (int k = 0; k < 7; k++) v[k] = v[k + 1];
        }
      }
      *reinterpret_cast<uint2*>(to + row[i] * rows.stride + column[i]) = make_uint2(words[0], words[1]);
    }
  }
}

// Rows of x into shared memory, by all threads of a block: a row of the block's columns (zero past the end
// of x) every `stride` bytes, so that eight rows lie in different banks.
#pragma once
#include "fp8.cuh"
#include "packed_weight/hopper/ptx.cuh"

struct Rows {
  const void* x;    // element [m, k] at m * pitch + k
  int64_t pitch;    // elements
  int type;         // 0 float32, 1 float16, 2 bfloat16, 3 int8, 4 fp8_e4m3
  int count;        // rows
  int first, end;   // columns to take: [first, end), cut at the end of x
  int share;        // columns of a warp, a multiple of 128
  int stride;       // bytes from row to row in shared memory
};

// the odd, or the even, of four 16-bit elements
__device__ __forceinline__ uint32_t odd(uint32_t low, uint32_t high) {
  return __byte_perm(low, high, 0x7632);
}
__device__ __forceinline__ uint32_t even(uint32_t low, uint32_t high) {
  return __byte_perm(low, high, 0x5410);
}

// two neighbours as floats
__device__ __forceinline__ float2 widened(uint32_t pair, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
__device__ __forceinline__ float2 widened(uint32_t pair, __nv_bfloat16) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

__device__ __forceinline__ bool lies_well(const Rows& rows, int bytes) {
  return ((reinterpret_cast<uint64_t>(rows.x) | (rows.pitch * bytes)) & 15) == 0;
}

// Warps y of a block share the columns, warps z the rows: a warp iterates over its chunks of `each` columns.
struct ChunkIterator {
  int row, column, first, last, each;
  __device__ ChunkIterator(const Rows& rows, int each) : each(each) {
    first = threadIdx.y * rows.share + threadIdx.x * each, last = (threadIdx.y + 1) * rows.share;
    column = first, row = first < last ? threadIdx.z : 1 << 24;
  }
  __device__ __forceinline__ void advance() {
    column += 32 * each;
    if (column >= last) column = first, row += blockDim.z;
  }
};

// int8 codes, copied as they are by cp.async
__device__ __forceinline__ void stage(const Rows& rows, int8_t, unsigned char* to) {
  const int8_t* x = static_cast<const int8_t*>(rows.x);
  const bool well = lies_well(rows, 1);
#pragma unroll 1
  for (ChunkIterator at(rows, 16); at.row < rows.count; at.advance()) {
    unsigned char* there = to + at.row * rows.stride + at.column;
    const int8_t* from = x + at.row * rows.pitch + rows.first + at.column;
    const int left = min(16, max(0, rows.end - rows.first - at.column));
    if (well) {
      copy_async(shared_address(there), left > 0 ? from : x, left);
    } else {
#pragma unroll 1
      for (int j = 0; j < 16; j++) there[j] = j < left ? from[j] : 0;
    }
  }
}

// the same by TMA multicast, for rows that are aligned: block `which` of `multicast` sends its part of each row
// to all of them; called by the lanes of a warp
__device__ __forceinline__ void multicast_rows(const Rows& rows, int which, int multicast, int mask,
                                          uint32_t barrier, uint32_t to) {
  const int width = max(0, rows.end - rows.first), fold = 4 + multicast / 2;  // 16 bytes of each block
  const int each = ((width + (1 << fold) - 1) >> fold) * 16;
  const int from = which * each, bytes = min(each, width - from);
  const int m = threadIdx.x;
  if (m < rows.count && bytes > 0)
    multicast_bytes(to + m * rows.stride + from,
         static_cast<const int8_t*>(rows.x) + m * rows.pitch + rows.first + from, bytes, barrier, mask);
}
// and zeros behind the end of x, by all threads
__device__ __forceinline__ void clear_end(const Rows& rows, int columns, unsigned char* to) {
  const int width = max(0, rows.end - rows.first), left = (columns - width) / 16;
  for (int i = thread_of_block(); i < left * rows.count; i += threads_of_block())
    *reinterpret_cast<uint4*>(to + i / left * rows.stride + width + i % left * 16) = make_uint4(0, 0, 0, 0);
}

// 16-bit floats, of each 16 the odd ones first; a thread has several chunks of 16 in flight
template <class X> __device__ __forceinline__ void stage(const Rows& rows, X, unsigned char* to) {
  constexpr int AT_ONCE = 4;
  const uint16_t* x = static_cast<const uint16_t*>(rows.x);
  const bool well = lies_well(rows, 2);
  ChunkIterator at(rows, 16);
#pragma unroll 1
  while (at.row < rows.count) {
    uint4 raw[AT_ONCE][2];
    ChunkIterator ahead = at;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++, ahead.advance()) {
      const uint16_t* from = x + ahead.row * rows.pitch + rows.first + ahead.column;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        raw[i][half] = make_uint4(0, 0, 0, 0);
        if (ahead.row < rows.count && well && rows.end - rows.first - ahead.column >= 16)
          raw[i][half] = *reinterpret_cast<const uint4*>(from + half * 8);
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++, at.advance()) {
      if (at.row >= rows.count) continue;
      const int left = rows.end - rows.first - at.column;
      unsigned char* there = to + at.row * rows.stride + at.column * 2;
      if (well && left >= 16) {
        const uint4 a = raw[i][0], b = raw[i][1];
        uint4* const chunks = reinterpret_cast<uint4*>(there);
        chunks[0] = make_uint4(odd(a.x, a.y), odd(a.z, a.w), odd(b.x, b.y), odd(b.z, b.w));
        chunks[1] = make_uint4(even(a.x, a.y), even(a.z, a.w), even(b.x, b.y), even(b.z, b.w));
      } else {
        const uint16_t* from = x + at.row * rows.pitch + rows.first + at.column;
        uint16_t* const elements = reinterpret_cast<uint16_t*>(there);
#pragma unroll 1
        for (int j = 0; j < 16; j++) elements[(j % 2 ? 0 : 8) + j / 2] = j < left ? from[j] : 0;
      }
    }
  }
}

// 8-bit codes as float16, likewise: fp8_e4m3, or int8 against weights that are floats
template <bool FP8> __device__ __forceinline__ void stage_bytes(const Rows& rows, unsigned char* to) {
  constexpr int AT_ONCE = 4;
  const unsigned char* x = static_cast<const unsigned char*>(rows.x);
  const bool well = lies_well(rows, 1);
  ChunkIterator at(rows, 16);
#pragma unroll 1
  while (at.row < rows.count) {
    uint4 raw[AT_ONCE];
    ChunkIterator ahead = at;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++, ahead.advance()) {
      raw[i] = make_uint4(0, 0, 0, 0);
      if (ahead.row >= rows.count) continue;
      const unsigned char* from = x + ahead.row * rows.pitch + rows.first + ahead.column;
      const int left = rows.end - rows.first - ahead.column;
      if (well && left >= 16) {
        raw[i] = *reinterpret_cast<const uint4*>(from);
      } else {
#pragma unroll 1
        for (int j = 15; j >= 0; j--) {
          uint4& v = raw[i];
          v.w = v.w << 8 | v.z >> 24, v.z = v.z << 8 | v.y >> 24, v.y = v.y << 8 | v.x >> 24;
          v.x = v.x << 8 | (j < left ? from[j] : 0);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++, at.advance()) {
      if (at.row >= rows.count) continue;
      uint4* const chunks = reinterpret_cast<uint4*>(to + at.row * rows.stride + at.column * 2);
#pragma unroll
      for (int even = 0; even < 2; even++) {
        const auto two = [&](uint32_t codes) {
          return FP8 ? two_halves<__NV_E4M3>(codes, !even) : Product<__half>::bytes(codes, !even);
        };
        chunks[even] = make_uint4(two(raw[i].x), two(raw[i].y), two(raw[i].z), two(raw[i].w));
      }
    }
  }
}

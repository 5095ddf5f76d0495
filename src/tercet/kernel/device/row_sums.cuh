// What kernels over long rows are made of: vectors of numbers, powers, sums of powers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr float LOG2E = 1.4426950408889634f;

template <typename T> struct Lanes;
template <> struct Lanes<float> {
  static constexpr int COUNT = 4;
  static __device__ void load(uint4 v, float* x) {
    x[0] = __uint_as_float(v.x); x[1] = __uint_as_float(v.y);
    x[2] = __uint_as_float(v.z); x[3] = __uint_as_float(v.w);
  }
  static __device__ uint4 store(const float* x) {
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                      __float_as_uint(x[3]));
  }
  static __device__ float largest(uint4 v, float top) {
    float x[4];
    load(v, x);
    return fmaxf(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), top);
  }
};
template <typename T, typename Pair> struct Halves {
  static constexpr int COUNT = 8;
  static __device__ void load(uint4 v, float* x) {
    const T* h = reinterpret_cast<const T*>(&v);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = static_cast<float>(h[i]);
  }
  static __device__ uint4 store(const float* x) {
    uint4 v;
    T* h = reinterpret_cast<T*>(&v);
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] = static_cast<T>(x[i]);
    return v;
  }
  // two values an instruction, without converting them
  static __device__ float largest(uint4 v, float top) {
    const Pair* p = reinterpret_cast<const Pair*>(&v);
    const Pair two = __hmax2(__hmax2(p[0], p[1]), __hmax2(p[2], p[3]));
    return fmaxf(fmaxf(static_cast<float>(two.x), static_cast<float>(two.y)), top);
  }
};
template <> struct Lanes<__nv_bfloat16> : Halves<__nv_bfloat16, __nv_bfloat162> {};
template <> struct Lanes<__half> : Halves<__half, __half2> {};

__device__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^((x - shift) k) in one fused operation and one exponential: 2^(x k - c) with c = shift k
// rounded, and `rest` = 2^(c - shift k) to put right what that rounding did. Where c is too large
// for that (or no number: there is no softmax then) the difference is taken first.
struct Shifted {
  float shift, k, c, rest;
  bool wide;
  __device__ Shifted(float shift, float k) : shift(shift), k(k), c(shift * k) {
    wide = !(fabsf(c) < 1e6f);
    rest = wide ? 1.f : exp2_fast(-fmaf(shift, k, -c));
  }
  template <bool WIDE> __device__ float power(float x) const {
    return exp2_fast(WIDE ? (x - shift) * k : fmaf(x, k, -c));
  }
};

// the maximum of some values and the sum of 2^((x - maximum) k). A NaN is in no maximum, but in the
// sum; a part that is all -inf adds nothing
struct Sum {
  float top, total;
  __device__ Sum(float top = -INFINITY, float total = 0.f) : top(top), total(total) {}
  template <typename T> __device__ void add(uint4 v, float k) {
    const float now = Lanes<T>::largest(v, top);
    const float base = now == -INFINITY ? 0.f : now;
    float x[Lanes<T>::COUNT], more = 0.f;
    Lanes<T>::load(v, x);
#pragma unroll
    for (int j = 0; j < Lanes<T>::COUNT; j++) more += exp2_fast((x[j] - base) * k);
    total = fmaf(total, exp2_fast((top - base) * k), more);
    top = now;
  }
  __device__ void merge(Sum other, float k) {
    const float now = fmaxf(top, other.top), base = now == -INFINITY ? 0.f : now;
    total = total * exp2_fast((top - base) * k) + other.total * exp2_fast((other.top - base) * k);
    top = now;
  }
};

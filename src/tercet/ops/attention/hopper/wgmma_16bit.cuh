// wgmma of 16-bit floats: with A in shared memory, and with a B whose rows are those of the sum.
//
// scores: D[64, N] = A[64, 16] B[N, 16]^T, both in shared memory as wgmma::descriptor names them.
// mix:    D[64, N] += A[64, 16] B[16, N], A in registers as in wgmma.cuh, B as `transposed` names it.
#pragma once
#include "kernel/device/hopper/wgmma.cuh"

namespace wgmma {

// Of rows of 128 bytes at a shared address that is a multiple of 1024, 64 columns of N each; the next
// 64 columns lie so many bytes on. Rows are K: sixteen of them are one product's.
template <int BYTES>
__device__ inline uint64_t transposed(uint32_t shared) {
  constexpr uint32_t EIGHT_ROWS = 1024 >> 4, SWIZZLE_128 = 1u << 30;
  uint64_t both;
  asm("mov.b64 %0, {%1, %2};"
      : "=l"(both)
      : "r"((shared & 0x3FFFF) >> 4 | (BYTES >> 4) << 16), "r"(EIGHT_ROWS | SWIZZLE_128));
  return both;
}

template <class X, int N>
__device__ void scores(float (&d)[N / 2], uint64_t a, uint64_t b, bool add);
template <class X, int N>
__device__ void mix(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b);

#define EIGHT(i)                                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define D64 EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24)
#define D80 D64, EIGHT(32)
#define D128 D80, EIGHT(40), EIGHT(48), EIGHT(56)
#define D256                                                                                  \
  D128, EIGHT(64), EIGHT(72), EIGHT(80), EIGHT(88), EIGHT(96), EIGHT(104), EIGHT(112), EIGHT(120)
#define NAMES64 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19" \
  ",%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES80 NAMES64 \
  ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES128 NAMES80 \
  ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59" \
  ",%60,%61,%62,%63"
#define NAMES256 NAMES128 \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83" \
  ",%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103" \
  ",%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123" \
  ",%124,%125,%126,%127"

// A, B and P: the names of the operands that follow those of D
#define SCORES(X, type, n, A, B, P)                                                        \
  template <>                                                                              \
  __device__ inline void scores<X, n>(float(&d)[n / 2], uint64_t a, uint64_t b, bool add) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                     \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type     \
                 " {" NAMES##n "}, " A ", " B ", p, 1, 1, 0, 0;\n}"                        \
                 : D##n                                                                    \
                 : "l"(a), "l"(b), "r"(int(add)));                                         \
  }
#define MIX(X, type, n, A, B)                                                               \
  template <>                                                                               \
  __device__ inline void mix<X, n>(float(&d)[n / 2], const uint32_t(&a)[4], uint64_t b) {   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {"       \
                 NAMES##n "}, {" A "}, " B ", 1, 1, 1, 1;"                                  \
                 : D##n                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                     \
  }
#define BOTH(X, type)                               \
  SCORES(X, type, 128, "%64", "%65", "%66")         \
  SCORES(X, type, 80, "%40", "%41", "%42")          \
  MIX(X, type, 64, "%32,%33,%34,%35", "%36")        \
  MIX(X, type, 128, "%64,%65,%66,%67", "%68")       \
  MIX(X, type, 256, "%128,%129,%130,%131", "%132")

BOTH(__half, "f16")
BOTH(__nv_bfloat16, "bf16")

#undef EIGHT
#undef D64
#undef D80
#undef D128
#undef D256
#undef NAMES64
#undef NAMES80
#undef NAMES128
#undef NAMES256
#undef SCORES
#undef MIX
#undef BOTH

}  // namespace wgmma

// wgmma with A in registers: D[64, N] += A[64, K] B[N, K]^T, four warps together, K being 32 bytes:
// 32 columns of 8 bits, 16 of 16.
//
// A and D lie as in mma.m16n8k32 and m16n8k16, warp w of the four holding rows 16 w .. 16 w + 15. B
// lies in shared memory, one row of 128 bytes a column of D, in TMA's 128-byte swizzle,
// and is named by a descriptor. The registers of A and D belong to the tensor cores until wait()
// says otherwise.
#pragma once
#include <stdint.h>

namespace wgmma {

// Of rows of 128 bytes at a shared address that is a multiple of 1024: the lower word of their
// descriptor, to which 16 bytes along K or from row to row add 1.
__device__ inline uint32_t descriptor_of_address(uint32_t shared) { return (shared & 0x3FFFF) >> 4 | 1u << 16; }
__device__ inline uint64_t full_descriptor(uint32_t lower) {
  constexpr uint32_t EIGHT_ROWS = 1024 >> 4, SWIZZLE_128 = 1u << 30;
  uint64_t both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(lower), "r"(EIGHT_ROWS | SWIZZLE_128));
  return both;
}
__device__ inline uint64_t descriptor(uint32_t shared) { return full_descriptor(descriptor_of_address(shared)); }

// before the first product, and after registers of A or D were written
__device__ inline void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// until at most `BEHIND` of the last committed groups are still running
template <int BEHIND>
__device__ inline void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(BEHIND) : "memory");
}

// keeps the compiler from moving uses of the registers across this line
template <typename T, int COUNT>
__device__ inline void pin(T (&registers)[COUNT]) {
  constexpr bool INTEGER = T(0.5f) == T(0);
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    if constexpr (INTEGER)
      asm volatile("" : "+r"(registers[i])::"memory");
    else
      asm volatile("" : "+f"(registers[i])::"memory");
}

// D[64, N] = A B^T, plus D where `add`. d has N / 2 registers a thread.
template <int N>
__device__ void product_s8(int (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool add);
template <int N>
__device__ void product_f16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool add);
template <int N>
__device__ void product_bf16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool add);
template <int N>
__device__ void product_e4m3(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool add);

#define EIGHT(kind, i)                                                                       \
  kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3]), kind(d[i + 4]), kind(d[i + 5]), \
      kind(d[i + 6]), kind(d[i + 7])
#define D32(kind) EIGHT(kind, 0), EIGHT(kind, 8)
#define D48(kind) D32(kind), EIGHT(kind, 16)
#define D64(kind) D32(kind), EIGHT(kind, 16), EIGHT(kind, 24)
#define D128(kind) D64(kind), EIGHT(kind, 32), EIGHT(kind, 40), EIGHT(kind, 48), EIGHT(kind, 56)
#define D160(kind) D128(kind), EIGHT(kind, 64), EIGHT(kind, 72)
#define D176(kind) D160(kind), EIGHT(kind, 80)
#define D192(kind) D176(kind), EIGHT(kind, 88)
#define D256(kind)                                                                              \
  D160(kind), EIGHT(kind, 80), EIGHT(kind, 88), EIGHT(kind, 96), EIGHT(kind, 104), \
      EIGHT(kind, 112), EIGHT(kind, 120)
#define NAMES32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES48 NAMES32 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NAMES64 NAMES32 \
  ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES128 NAMES64 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES160 NAMES128 \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NAMES176 NAMES160 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define NAMES192 NAMES176 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES256 NAMES160 \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// A, B and P: the names of the registers that follow those of D
#define PRODUCT(function, Type, kind, n, types, tail, A, B, P)                                 \
  template <>                                                                                  \
  __device__ inline void function<n>(Type(&d)[n / 2], const uint32_t(&a)[4], uint64_t b,       \
                                     bool add) {                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                         \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n types " {" NAMES##n "}, {" A     \
                 "}, " B ", p" tail ";\n}"                                                     \
                 : D##n(kind)                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));         \
  }
#define PRODUCTS(function, Type, kind, types, tail)                                             \
  PRODUCT(function, Type, kind, 32, types, tail, "%16,%17,%18,%19", "%20", "%21") \
  PRODUCT(function, Type, kind, 48, types, tail, "%24,%25,%26,%27", "%28", "%29") \
  PRODUCT(function, Type, kind, 64, types, tail, "%32,%33,%34,%35", "%36", "%37") \
  PRODUCT(function, Type, kind, 128, types, tail, "%64,%65,%66,%67", "%68", "%69") \
  PRODUCT(function, Type, kind, 160, types, tail, "%80,%81,%82,%83", "%84", "%85") \
  PRODUCT(function, Type, kind, 176, types, tail, "%88,%89,%90,%91", "%92", "%93") \
  PRODUCT(function, Type, kind, 192, types, tail, "%96,%97,%98,%99", "%100", "%101") \
  PRODUCT(function, Type, kind, 256, types, tail, "%128,%129,%130,%131", "%132", "%133")
#define INTEGER(register) "+r"(register)
#define FLOAT(register) "+f"(register)

PRODUCTS(product_s8, int, INTEGER, "k32.s32.s8.s8", "")
PRODUCTS(product_f16, float, FLOAT, "k16.f32.f16.f16", ", 1, 1, 0")
PRODUCTS(product_bf16, float, FLOAT, "k16.f32.bf16.bf16", ", 1, 1, 0")
PRODUCTS(product_e4m3, float, FLOAT, "k32.f32.e4m3.e4m3", ", 1, 1")

#undef EIGHT
#undef D32
#undef D48
#undef D64
#undef D128
#undef D160
#undef D176
#undef D192
#undef D256
#undef NAMES32
#undef NAMES48
#undef NAMES64
#undef NAMES128
#undef NAMES160
#undef NAMES176
#undef NAMES192
#undef NAMES256
#undef PRODUCT
#undef PRODUCTS
#undef INTEGER
#undef FLOAT

}  // namespace wgmma

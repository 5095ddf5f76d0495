// The few instructions of sm_90 that kernels for few tokens are made of.
#pragma once
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "clusters and programmatic dependent launch: compile for sm_90 or later"
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

// threads x are lanes, y and z warps
__device__ __forceinline__ int thread_of_block() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * 32 + threadIdx.x;
}
__device__ __forceinline__ int threads_of_block() { return blockDim.z * blockDim.y * 32; }

// weights are read once: not through the L1
__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t* b) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at));
}
// 16 bytes, of which `bytes` are read and the rest is zero
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
// after it all copies of this thread have come
__device__ __forceinline__ void copies_arrived() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// blocks of a cluster: a barrier for all their threads, and a word or four of another's memory
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t word_of(uint32_t shared, int rank) {
  uint32_t there, word;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(there) : "memory");
  return word;
}
__device__ __forceinline__ uint4 four_of(uint32_t shared, int rank) {
  uint32_t there;
  uint4 four;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  asm volatile("ld.shared::cluster.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "r"(there)
               : "memory");
  return four;
}

// c += a b of one tile, 16 rows of W by 8 of x, 32 columns of int8 or 16 of floats
__device__ __forceinline__ void mma_int8(int (&c)[4], const uint32_t* a, const uint32_t* b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bfloat16(float (&c)[4], const uint32_t* a, const uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_float16(float (&c)[4], const uint32_t* a, const uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// TMA multicast: bytes of a row to the same address in the blocks of `mask` of the cluster, counted by the
// barrier of each. A barrier is used once: `bytes` are expected, and all threads may wait for them.
__device__ __forceinline__ void expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void multicast_bytes(uint32_t shared, const void* global, int bytes, uint32_t barrier,
                                     int mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared), "l"(global), "r"(bytes), "r"(barrier),
      "h"(static_cast<uint16_t>(mask))
      : "memory");
}
__device__ __forceinline__ void arrived(uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n"
      "@!p bra again;\n}" ::"r"(barrier)
      : "memory");
}

template <class T> __device__ __forceinline__ T from_bits(uint32_t word) {
  if constexpr (T(0.5f) != 0) return __uint_as_float(word);
  else return word;
}

// programmatic dependent launch: both do nothing in a launch without it
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// numbers of any float type, chosen at run time: 0 float32, 1 float16, 2 bfloat16
__device__ __forceinline__ uint32_t bits_at(const void* p, int64_t i, int type) {
  if (type == 0) return static_cast<const uint32_t*>(p)[i];
  return static_cast<const uint16_t*>(p)[i];
}
__device__ __forceinline__ float number_of(uint32_t bits, int type) {
  if (type == 0) return __uint_as_float(bits);
  const float half = __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  return type == 1 ? half : __uint_as_float(bits << 16);
}
__device__ __forceinline__ float number_at(const void* p, int64_t i, int type) {
  return number_of(bits_at(p, i, type), type);
}
__device__ __forceinline__ void put_number(void* p, int64_t i, int type, float value) {
  if (type == 0) static_cast<float*>(p)[i] = value;
  if (type == 1) static_cast<__half*>(p)[i] = __float2half_rn(value);
  if (type == 2) static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(value);
}
// four neighbours, at a multiple of their bytes
__device__ __forceinline__ void put_four(void* p, int64_t i, int type, const float (&v)[4]) {
  if (type == 0) {
    *reinterpret_cast<float4*>(static_cast<float*>(p) + i) = make_float4(v[0], v[1], v[2], v[3]);
  } else {
    uint2 pairs;
    if (type == 1) {
      const __half2 low = __floats2half2_rn(v[0], v[1]), high = __floats2half2_rn(v[2], v[3]);
      pairs.x = reinterpret_cast<const uint32_t&>(low), pairs.y = reinterpret_cast<const uint32_t&>(high);
    } else {
      const __nv_bfloat162 low = __floats2bfloat162_rn(v[0], v[1]), high = __floats2bfloat162_rn(v[2], v[3]);
      pairs.x = reinterpret_cast<const uint32_t&>(low), pairs.y = reinterpret_cast<const uint32_t&>(high);
    }
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p) + i) = pairs;
  }
}
__host__ __device__ __forceinline__ int bytes_of(int type) { return type == 0 ? 4 : 2; }

// The few instructions of sm_90 that decode.cu is made of.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

// weights are read once: not through the L1, and first to leave the L2
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint4 load_weights(const uint4* p, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy));
  return v;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t (&b)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at));
}
__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t (&b)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(b[0]), "=r"(b[1])
               : "r"(at));
}

// 16 bytes, of which `bytes` are read and the rest is zero
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copies_arrived() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// programmatic dependent launch: both do nothing in a launch without it
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// a word of the shared memory of another block of the cluster, at the same place as in mine
__device__ __forceinline__ uint32_t word_of(int rank, const void* mine) {
  uint32_t remote, word;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(shared_address(mine)), "r"(rank));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(remote) : "memory");
  return word;
}

// numbers of any float type, chosen at run time: 0 float32, 1 float16, 2 bfloat16
__device__ __forceinline__ float number_at(const void* p, int64_t i, int type) {
  if (type == 0) return static_cast<const float*>(p)[i];
  if (type == 1) return __half2float(static_cast<const __half*>(p)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
}
__device__ __forceinline__ void put_number(void* p, int64_t i, int type, float value) {
  if (type == 0) static_cast<float*>(p)[i] = value;
  if (type == 1) static_cast<__half*>(p)[i] = __float2half_rn(value);
  if (type == 2) static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(value);
}
__host__ __device__ __forceinline__ int bytes_of(int type) { return type == 0 ? 4 : 2; }

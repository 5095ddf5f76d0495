// What kernel.cuh needs of a GPU beside packed_weight/hopper/ptx.cuh.
#pragma once
#include "packed_weight/hopper/ptx.cuh"

// 4, 8 or 16
template <int BYTES> __device__ __forceinline__ void copy_few_async(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(BYTES) : "memory");
}
// this thread's copies since the last call become a group; all but the last LEFT groups have come
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void groups_arrived() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
// four 8x8 matrices of 16-bit elements, each transposed: lane 8 i + r gives the address of row r of the i-th
__device__ __forceinline__ void load_transposed(uint32_t at, uint32_t* b) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at));
}
// of an 8x8 matrix of 16-bit elements, of which each lane has two neighbours of a row
__device__ __forceinline__ uint32_t transposed(uint32_t two) {
  uint32_t other;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(two));
  return other;
}
// two words to the same address in another block of the cluster
__device__ __forceinline__ void put_there(uint32_t shared, int rank, float one, float other) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(one), "f"(other) : "memory");
}
// 1 / x within a unit in the last place, and 2^x within 2
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// silu(gate) * up, quantized row by row, of 16-bit floats in few long rows: a cluster of blocks takes a row.
//
// One block would walk a row that it cannot hold twice, 115 KB of 28672 pairs through one multiprocessor. Here each
// block holds an eighth of the row in registers; the largest magnitude and the sum of the codes
// go through the cluster's shared memory. As packed_weight/triton/row_quantizer.py has it, to the bit but for SiLU's
// rounding.
#include <cuda_fp8.h>

#include "packed_weight/hopper/ptx.cuh"

struct Task {
  const void *gate, *up;
  void* codes;
  float* scale;
  void* row_sum;
  int64_t gate_stride, up_stride;  // of rows, in elements
  int rows, columns;
  int half, fp8;
};

constexpr int BLOCKS = 8, THREADS = 256, WARPS = THREADS / 32, EACH = 8;  // EACH: elements of a load

__device__ __forceinline__ float2 widened(uint32_t pair, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
__device__ __forceinline__ float2 widened(uint32_t pair, __nv_bfloat16) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// x / (1 + exp(-x)): NaN at -inf, as torch's
__device__ __forceinline__ float silu(float x) {
  float power, y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(1.f + power));
  return y;
}

// into the shared memory of the block of that rank
__device__ __forceinline__ void store_there(uint32_t* here, uint32_t rank, uint32_t value) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(rank));
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(value) : "memory");
}

// A code, and its value in units: 1 of int8, 2^-9 of fp8_e4m3.
template <bool FP8> __device__ __forceinline__ uint32_t encode(float y, float scale, bool usable, int& units) {
  const float ratio = usable ? __fdiv_rn(y, scale) : 0.f;
  if constexpr (FP8) {
    const float clamped = fminf(fmaxf(ratio, -448.f), 448.f);
    // 1.5 * 2^20 times the power of two below keeps three bits of the mantissa, ties to even; a zero becomes +0
    const float power = __uint_as_float(__float_as_uint(clamped) & 0x7f800000u);
    const float keep = fmaxf(power, 0x1p-6f) * 0x1.8p20f, rounded = __fsub_rn(__fadd_rn(clamped, keep), keep);
    units = static_cast<int>(rounded * 512.f);
    return __nv_cvt_float_to_fp8(rounded, __NV_SATFINITE, __NV_E4M3);
  } else {
    units = static_cast<int>(rintf(fminf(fmaxf(ratio, -127.f), 127.f)));
    return static_cast<uint32_t>(units) & 0xffu;
  }
}

// VECTORS: loads that a thread holds
template <class X, bool FP8, int VECTORS> __global__ void __launch_bounds__(THREADS) gate_and_quantize(Task task) {
  __shared__ uint32_t tops[WARPS], sums[WARPS], of_blocks[2 * BLOCKS];
  launch_dependents();
  cluster_arrive();
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, rank = blockIdx.x, row = blockIdx.y;
  const int all = task.columns / EACH, share = (all + BLOCKS - 1) / BLOCKS;
  const int first = rank * share, end = min(first + share, all);
  const uint4* const gate = reinterpret_cast<const uint4*>(static_cast<const X*>(task.gate) + row * task.gate_stride);
  const uint4* const up = reinterpret_cast<const uint4*>(static_cast<const X*>(task.up) + row * task.up_stride);
  wait_for_previous_kernel();

  uint4 gates[VECTORS], ups[VECTORS];
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const int at = first + thread + i * THREADS;
    gates[i] = ups[i] = make_uint4(0, 0, 0, 0);
    if (at < end) gates[i] = gate[at], ups[i] = up[at];
  }
  float y[VECTORS][EACH];
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const uint32_t of_gate[] = {gates[i].x, gates[i].y, gates[i].z, gates[i].w};
    const uint32_t of_up[] = {ups[i].x, ups[i].y, ups[i].z, ups[i].w};
#pragma unroll
    for (int j = 0; j < EACH; j += 2) {
      const float2 g = widened(of_gate[j / 2], X()), u = widened(of_up[j / 2], X());
      y[i][j] = silu(g.x) * u.x, y[i][j + 1] = silu(g.y) * u.y;
      // bits order as magnitudes do, with NaN above inf
      top = max(top, max(__float_as_uint(y[i][j]) & 0x7fffffffu, __float_as_uint(y[i][j + 1]) & 0x7fffffffu));
    }
  }
  top = __reduce_max_sync(~0u, top);
  if (lane == 0) tops[warp] = top;
  __syncthreads();
  cluster_wait();  // the other blocks run
  if (thread < BLOCKS) {
    for (int i = 0; i < WARPS; i++) top = max(top, tops[i]);
    store_there(of_blocks + rank, thread, top);
  }
  cluster_arrive(), cluster_wait();
#pragma unroll
  for (int i = 0; i < BLOCKS; i++) top = max(top, of_blocks[i]);
  const float scale = __fdiv_rn(__uint_as_float(top), FP8 ? 448.f : 127.f);
  const bool usable = scale > 0.f && scale < INFINITY;

  uint2* const codes = reinterpret_cast<uint2*>(static_cast<char*>(task.codes) + static_cast<int64_t>(row) * task.columns);
  int sum = 0;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const int at = first + thread + i * THREADS;
    if (at >= end) break;
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      int units;
      words[j / 4] |= encode<FP8>(y[i][j], scale, usable, units) << (8 * (j % 4));
      sum += units;
    }
    codes[at] = make_uint2(words[0], words[1]);
  }
  // of fp8: a block's 256 x 32 codes of 448 are below 2^31 units
  sum = __reduce_add_sync(~0u, sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (thread == 0) {
    sum = 0;
    for (int i = 0; i < WARPS; i++) sum += static_cast<int>(sums[i]);
    store_there(of_blocks + BLOCKS + rank, 0, sum);
  }
  cluster_arrive();
  if (rank) return;
  cluster_wait();
  if (thread == 0) {
    int64_t total = 0;
    for (int i = 0; i < BLOCKS; i++) total += static_cast<int>(of_blocks[BLOCKS + i]);
    task.scale[row] = scale;
    if (FP8)
      static_cast<float*>(task.row_sum)[row] = static_cast<float>(static_cast<double>(total) * 0x1p-9);
    else
      static_cast<int*>(task.row_sum)[row] = static_cast<int>(total);
  }
}

template <class X, bool FP8, int VECTORS> static int launch(const Task& task, cudaStream_t stream) {
  auto kernel = gate_and_quantize<X, FP8, VECTORS>;
  constexpr int MOST_DEVICES = 64;
  static bool set[MOST_DEVICES] = {};
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if (device >= MOST_DEVICES) return cudaErrorInvalidDevice;
  if (!set[device]) {
    // as the products around it: a change of the L1's split would wait for the SM to empty
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                    cudaSharedmemCarveoutMaxShared);
    if (status != cudaSuccess) return cudaGetLastError(), status;
    set[device] = true;
  }
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {BLOCKS, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(BLOCKS, task.rows);
  config.blockDim = dim3(THREADS);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, task);
  return status != cudaSuccess ? (cudaGetLastError(), status) : 0;
}

template <class X, bool FP8> static int with_vectors(const Task& task, cudaStream_t stream) {
  const int share = (task.columns / EACH + BLOCKS - 1) / BLOCKS;
  if (share <= THREADS) return launch<X, FP8, 1>(task, stream);
  if (share <= 2 * THREADS) return launch<X, FP8, 2>(task, stream);
  if (share <= 4 * THREADS) return launch<X, FP8, 4>(task, stream);
  return cudaErrorInvalidValue;
}

template <class X> static int with_codes(const Task& task, cudaStream_t stream) {
  return task.fp8 ? with_vectors<X, true>(task, stream) : with_vectors<X, false>(task, stream);
}

extern "C" int tercet_swiglu_quantized(const Task* task, void* to) {
  const cudaStream_t stream = static_cast<cudaStream_t>(to);
  return task->half ? with_codes<__half>(*task, stream) : with_codes<__nv_bfloat16>(*task, stream);
}

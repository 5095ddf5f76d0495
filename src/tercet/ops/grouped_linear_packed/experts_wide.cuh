// y[t] = row_weight[t] (x[t] W_e^T + bias_e) as experts_kernel.cuh, for experts of many rows on Hopper: the
// products are those of prefill_multiply.cuh, y^T = W x^T by wgmma with packed weights as the operand in
// registers.
//
//   warpgroup 0  one warp asks the copy engine for T rows of x and ROWS rows of an expert's W, 128 columns
//                a stage, in a ring
//   the others   MB x 64 rows of W each: decode the next step while the tensor cores run this one
//
// A tile is up to T rows of one expert against ROWS rows of its W; what a copy brings beyond either is
// multiplied, and not written. Tiles go round the blocks; a table in shared memory says where each expert's
// begin.
#pragma once
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#error "wgmma and setmaxnreg are of compute capability 9.0 alone: compile for sm_90a"
#endif

#include "experts_task.cuh"
#include "mbarrier.cuh"
#include "prefill_multiply.cuh"
#include "prefill_result.cuh"
#include "prefill_shape.cuh"
#include "tma.cuh"

constexpr int MOST_EXPERTS = 512, TABLE_BYTES = 2176;  // a number each, and the total

template <int X, int BITS, int MB, int T, int TEAMS>
using Wide = Shape<X, BITS, 0, MB, T, 1, 1, TEAMS, TABLE_BYTES>;

// Where tiles are, for warps.
struct Tiles {
  const int* starts;  // [experts + 1] in shared memory: tiles of rows before an expert
  int most_rows, parts, total;

  // By all threads of the block.
  __device__ Tiles(const Task& task, int* starts, int most_rows, int parts)
      : starts(starts), most_rows(most_rows), parts(parts) {
    for (int e = threadIdx.x; e < task.experts; e += blockDim.x)
      starts[e + 1] = (max(last_row(task, e) - first_row(task, e), 0) + most_rows - 1) / most_rows;
    __syncthreads();
    if (threadIdx.x < 32) {
      int before = 0;
      for (int base = 0; base < task.experts; base += 32) {
        const int e = base + threadIdx.x;
        int through = e < task.experts ? starts[e + 1] : 0;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const int other = __shfl_up_sync(~0u, through, step);
          if (threadIdx.x >= step) through += other;
        }
        through += before;
        if (e < task.experts) starts[e + 1] = through;
        before = __shfl_sync(~0u, through, 31);
      }
      if (threadIdx.x == 0) starts[0] = 0;
    }
    __syncthreads();
    // the same in all lanes, and known to be
    total = __shfl_sync(~0u, starts[task.experts] * parts, 0);
  }
  // whatever the offsets hold, rows are within 0 .. T - 1
  static __device__ int first_row(const Task& task, int e) { return max(task.offsets[e], 0); }
  static __device__ int last_row(const Task& task, int e) {
    return min(task.offsets[e + 1], task.count);
  }
  // Of that number; by whole warps. Those that meet the same weights are neighbours.
  __device__ Tile operator()(const Task& task, int at) const {
    int expert = 0;
    for (int base = 0; base < task.experts; base += 32) {
      const int e = base + threadIdx.x % 32;
      expert += __popc(__ballot_sync(~0u, e < task.experts && starts[e + 1] * parts <= at));
    }
    const int inside = at - starts[expert] * parts, tiles = starts[expert + 1] - starts[expert];
    const int row = first_row(task, expert) + inside % tiles * most_rows;
    return {expert, row, min(most_rows, last_row(task, expert) - row), inside / tiles};
  }
};

// One warp: fills the ring.
template <class S>
__device__ void bring(const Task& task, const Tiles& tiles, Ring ring, const CUtensorMap* x_map,
                      const CUtensorMap* w_map, int stages) {
  for (int at = blockIdx.x; at < tiles.total; at += gridDim.x) {
    const Tile tile = tiles(task, at);
    const int block0 = tile.expert * task.blocks + tile.part * (S::ROWS / 16);
    for (int k = 0; k < stages; k++) {
      if (threadIdx.x == 0) {
        const uint32_t ready = ring.full + ring.stage * 8;
        mbarrier::wait(ring.empty + ring.stage * 8, ring.parity ^ 1);
        mbarrier::expect(ready, S::X_BYTES + S::W_BYTES);
#pragma unroll
        for (int part = 0; part < S::X_SIZE; part++)  // 128 bytes of every row
          tma::load(ring.x + ring.stage * S::X_BYTES + part * (S::T * 128), x_map, ready,
                    k * DEPTH + part * (DEPTH / S::X_SIZE), tile.first);
        tma::load(ring.w + ring.stage * S::W_BYTES, w_map, ready, 0, k * S::UNITS, block0);
      }
      ring.advance<S>();
    }
    __syncwarp();
  }
}

// A warp's rows of W and the tile's of x: sums to 16-bit y, 16 bytes a lane. `turns` is memory of the warp's
// own.
template <class S, int TYPE>
__device__ void write_rows(const Sums<S>& sums, const Values<S>& values, const Task& task,
                           const Tile& tile, int row0, uint32_t turns) {
  constexpr int PIECES = S::MB * 2;
  const int lane = threadIdx.x % 32, piece = lane % PIECES, n = row0 + piece * 8;
#pragma unroll
  for (int from = 0; from < S::T; from += S::TURN) {
    if (from >= tile.rows) break;
    const uint32_t memory = turns + from / S::TURN % 2 * S::TURN_BYTES;
    turn_sums<S, TYPE, true>(sums, values, from, memory);
    __syncwarp();
#pragma unroll
    for (int t = lane / PIECES; t < S::TURN; t += 32 / PIECES) {
      if (from + t >= tile.rows || n >= task.n) continue;
      uint16_t* const y =
          static_cast<uint16_t*>(task.y) + static_cast<int64_t>(tile.first + from + t) * task.n + n;
      *reinterpret_cast<uint4*>(y) = load_shared(memory + place_in_turn<S>(t, piece));
    }
  }
}

// One warp of those that multiply: its rows of W of every tile.
template <class S>
__device__ void multiply_tiles(const Task& task, const Tiles& tiles, const Ring& ring, int warp,
                               int stages, uint32_t turns) {
  const int block = warp * S::MB;
  Feed<S> feed(ring, block);
  Lead lead = {0};
  for (int at = blockIdx.x; at < tiles.total; at += gridDim.x) {
    const Tile tile = tiles(task, at);
    const int row0 = tile.part * S::ROWS + block * 16;
    const auto of_expert = [&](const void* numbers, int64_t rows, int type) {
      return static_cast<const char*>(numbers) + tile.expert * rows * (type == FLOAT32 ? 4 : 2);
    };
    Result result = {};
    result.w_scale = of_expert(task.scale, task.blocks * 16, task.scale_type);
    if (task.bias) result.bias = of_expert(task.bias, task.n, task.bias_type);
    result.x_scale = task.x_scale;
    result.w_scale_type = task.scale_type, result.bias_type = task.bias_type;
    result.tokens = tile.first + tile.rows, result.rows = task.n;
    Factors<S> factors;
    factors.load(result, tile.first, row0);
#pragma unroll
    for (int i = 0; i < (S::T + 31) / 32; i++) {
      const int row = 32 * i + threadIdx.x % 32;
      factors.weight[i] =
          task.row_weight && row < tile.rows ? __ldg(task.row_weight + tile.first + row) : 1.f;
    }
    Sums<S> sums;
    multiply<S>(sums, feed, lead, stages);
    const Values<S> values(factors, result);
    if (task.y_type == FLOAT16)
      write_rows<S, FLOAT16>(sums, values, task, tile, row0, turns);
    else
      write_rows<S, BFLOAT16>(sums, values, task, tile, row0, turns);
  }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    experts_wide(const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap w_map, const __grid_constant__ Task task) {
  extern __shared__ uint8_t memory[];
  uint8_t* const aligned = memory + (1024 - mbarrier::address_of(memory) % 1024) % 1024;
  uint8_t* const turns = aligned + S::STAGES * S::STAGE_BYTES;
  int* const starts = reinterpret_cast<int*>(turns + S::WARPS * S::WARP_BYTES);
  Ring ring = {};
  ring.x = mbarrier::address_of(aligned);
  ring.w = ring.x + S::STAGES * S::X_BYTES;
  ring.full = mbarrier::address_of(starts) + TABLE_BYTES;
  ring.empty = ring.full + S::STAGES * 8;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::STAGES; s++) {
      mbarrier::init(ring.full + s * 8, 1);
      mbarrier::init(ring.empty + s * 8, S::WARPS);
    }
    mbarrier::publish();
    tma::prefetch(&x_map);
    tma::prefetch(&w_map);
  }
  let_next_start();
  wait_for_previous();
  const Tiles tiles(task, starts, S::T, (task.n + S::ROWS - 1) / S::ROWS);
  const int stages = (task.k + DEPTH - 1) / DEPTH;
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (warp == 0) bring<S>(task, tiles, ring, &x_map, &w_map, stages);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
    multiply_tiles<S>(task, tiles, ring, warp - 4, stages,
                      mbarrier::address_of(turns) + (warp - 4) * S::WARP_BYTES);
  }
}

// Tiles go round `blocks` blocks. Returns a cudaError_t.
template <class S> int launch_wide(const Task& task, int blocks, cudaStream_t stream) {
  if (task.experts > MOST_EXPERTS || task.n % 8 || task.y_type == FLOAT32)
    return cudaErrorInvalidValue;
  const auto x_type =
      S::X_SIZE == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  CUtensorMap x_map, w_map;
  const cuuint64_t k = task.k, count = task.count, units = task.units;
  const cuuint64_t blocks_of_w = static_cast<cuuint64_t>(task.experts) * task.blocks;
  int error = tma::encode<2>(&x_map, x_type, task.x, {k, count},
                             {static_cast<cuuint64_t>(task.x_pitch)}, {DEPTH / S::X_SIZE, S::T},
                             CU_TENSOR_MAP_SWIZZLE_128B);
  if (error) return error;
  error = tma::encode<3>(&w_map, CU_TENSOR_MAP_DATA_TYPE_INT32, task.codes,
                         {128, units, blocks_of_w}, {512, units * 512},
                         {128, S::UNITS, S::ROWS / 16}, CU_TENSOR_MAP_SWIZZLE_NONE);
  if (error) return error;
  const auto kernel = experts_wide<S>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
  if (error) return error;
  cudaLaunchAttribute dependent;
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(S::THREADS);
  config.dynamicSmemBytes = S::BYTES;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = 1;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, x_map, w_map, task);
  return status != cudaSuccess ? (cudaGetLastError(), status) : cudaSuccess;
}

template <int X, int BITS>
int launch_rows(const Task& task, int rows, int blocks, cudaStream_t stream) {
#define WIDE(...) return launch_wide<Wide<X, BITS, __VA_ARGS__>>(task, blocks, stream)
  switch (rows) {
    case 32: WIDE(2, 32, 2);
    case 48: WIDE(2, 48, 2);
    case 64: WIDE(2, 64, 2);
    case 128: WIDE(2, 128, 2);
  }
#undef WIDE
  return cudaErrorInvalidValue;
}

// `rows` of x a tile. Returns a cudaError_t.
#define TERCET_EXPERTS_WIDE(X)                                                                  \
  extern "C" int tercet_experts_wide(const Task* task, int bits, int rows, int blocks,          \
                                     void* stream) {                                            \
    const auto on = static_cast<cudaStream_t>(stream);                                          \
    if (bits == 2) return launch_rows<X, 2>(*task, rows, blocks, on);                           \
    if (bits == 4) return launch_rows<X, 4>(*task, rows, blocks, on);                           \
    return cudaErrorInvalidValue;                                                               \
  }

// y[t] = row_weight[t] (x[t] W_e^T + bias_e) as hopper_decode/kernel.cuh, for experts of many rows on Hopper:
// the mainloop is packed_weight/hopper/mainloop.cuh, y^T = W x^T by wgmma with packed weights as the operand in
// registers.
//
//   warpgroup 0  producer: one warp issues TMA loads of T rows of x and ROWS rows of an expert's W, 128 columns
//                a pipeline stage
//   the others   consumers, MB x 64 rows of W each: decode the next step while the tensor cores run this one
//
// A tile is up to T rows of one expert against ROWS rows of its W; what TMA loads beyond either is multiplied,
// and not written. Persistent: tiles go round the blocks; a table in shared memory says where each expert's
// begin.
#pragma once
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#error "wgmma and setmaxnreg are of compute capability 9.0 alone: compile for sm_90a"
#endif

#include "ops/grouped_linear_packed/hopper_decode/task.cuh"
#include "kernel/device/hopper/mbarrier.cuh"
#include "packed_weight/hopper/mainloop.cuh"
#include "packed_weight/hopper/epilogue.cuh"
#include "packed_weight/hopper/tile_shape.cuh"
#include "kernel/device/hopper/tma.cuh"

constexpr int MOST_EXPERTS = 512, TABLE_BYTES = 2176;  // a number each, and the total

template <int X, int BITS, int MB, int T, int WARPGROUPS>
using Wide = Shape<X, BITS, 0, MB, T, 1, 1, WARPGROUPS, TABLE_BYTES>;

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
  // Of that number; by whole warps. Those with the same weights are neighbours.
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

// The producer warp.
template <class S>
__device__ void produce(const Task& task, const Tiles& tiles, Pipeline pipeline, const CUtensorMap* x_map,
                      const CUtensorMap* w_map, int stages) {
  for (int at = blockIdx.x; at < tiles.total; at += gridDim.x) {
    const Tile tile = tiles(task, at);
    const int block0 = tile.expert * task.blocks + tile.slice * (S::ROWS / 16);
    for (int k = 0; k < stages; k++) {
      if (threadIdx.x == 0) {
        const uint32_t ready = pipeline.full + pipeline.stage * 8;
        mbarrier::wait(pipeline.empty + pipeline.stage * 8, pipeline.parity ^ 1);
        mbarrier::expect(ready, S::X_BYTES + S::W_BYTES);
#pragma unroll
        for (int slice = 0; slice < S::X_SIZE; slice++)  // 128 bytes of every row
          tma::load(pipeline.x + pipeline.stage * S::X_BYTES + slice * (S::T * 128), x_map, ready,
                    k * DEPTH + slice * (DEPTH / S::X_SIZE), tile.first);
        tma::load(pipeline.w + pipeline.stage * S::W_BYTES, w_map, ready, 0, k * S::UNITS, block0);
      }
      pipeline.advance<S>();
    }
    __syncwarp();
  }
}

// A warp's rows of W and the tile's of x: sums to 16-bit y, 16 bytes a lane. `staging` is the warp's own shared
// memory.
template <class S, int TYPE>
__device__ void write_rows(const Sums<S>& sums, const Values<S>& values, const Task& task,
                           const Tile& tile, int row0, uint32_t staging) {
  constexpr int CHUNKS = S::MB * 2;
  const int lane = threadIdx.x % 32, piece = lane % CHUNKS, n = row0 + piece * 8;
#pragma unroll
  for (int from = 0; from < S::T; from += S::EPILOGUE_TOKENS) {
    if (from >= tile.rows) break;
    const uint32_t memory = staging + from / S::EPILOGUE_TOKENS % 2 * S::EPILOGUE_BYTES;
    transpose_sums<S, TYPE, true>(sums, values, from, memory);
    __syncwarp();
#pragma unroll
    for (int t = lane / CHUNKS; t < S::EPILOGUE_TOKENS; t += 32 / CHUNKS) {
      if (from + t >= tile.rows || n >= task.n) continue;
      uint16_t* const y =
          static_cast<uint16_t*>(task.y) + static_cast<int64_t>(tile.first + from + t) * task.n + n;
      *reinterpret_cast<uint4*>(y) = load_shared(memory + swizzled_offset<S>(t, piece));
    }
  }
}

// A consumer warp: its rows of W of every tile.
template <class S>
__device__ void multiply_tiles(const Task& task, const Tiles& tiles, const Pipeline& pipeline, int warp,
                               int stages, uint32_t staging) {
  const int block = warp * S::MB;
  Consumer<S> consumer(pipeline, block);
  Stagger stagger = {0};
  for (int at = blockIdx.x; at < tiles.total; at += gridDim.x) {
    const Tile tile = tiles(task, at);
    const int row0 = tile.slice * S::ROWS + block * 16;
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
    multiply<S>(sums, consumer, stagger, stages);
    const Values<S> values(factors, result);
    if (task.y_type == FLOAT16)
      write_rows<S, FLOAT16>(sums, values, task, tile, row0, staging);
    else
      write_rows<S, BFLOAT16>(sums, values, task, tile, row0, staging);
  }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    experts_wide(const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap w_map, const __grid_constant__ Task task) {
  extern __shared__ uint8_t memory[];
  uint8_t* const aligned = memory + (1024 - mbarrier::address_of(memory) % 1024) % 1024;
  uint8_t* const staging = aligned + S::STAGES * S::STAGE_BYTES;
  int* const starts = reinterpret_cast<int*>(staging + S::WARPS * S::WARP_BYTES);
  Pipeline pipeline = {};
  pipeline.x = mbarrier::address_of(aligned);
  pipeline.w = pipeline.x + S::STAGES * S::X_BYTES;
  pipeline.full = mbarrier::address_of(starts) + TABLE_BYTES;
  pipeline.empty = pipeline.full + S::STAGES * 8;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::STAGES; s++) {
      mbarrier::init(pipeline.full + s * 8, 1);
      mbarrier::init(pipeline.empty + s * 8, S::WARPS);
    }
    mbarrier::publish();
    tma::prefetch(&x_map);
    tma::prefetch(&w_map);
  }
  launch_dependents();
  wait_for_previous_kernel();
  const Tiles tiles(task, starts, S::T, (task.n + S::ROWS - 1) / S::ROWS);
  const int stages = (task.k + DEPTH - 1) / DEPTH;
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (warp == 0) produce<S>(task, tiles, pipeline, &x_map, &w_map, stages);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
    multiply_tiles<S>(task, tiles, pipeline, warp - 4, stages,
                      mbarrier::address_of(staging) + (warp - 4) * S::WARP_BYTES);
  }
}

// y[M, N] = x[M, K] W[N, K]^T + bias[N] on a CPU, W in the rows16 layout.
//
// One row of x: a pass over the codes, table lookup and FMA, bound by reading them. More rows: codes
// are decoded once per panel of kDepth columns into the first-level cache and multiplied from there
// by a register-tiled float product. Each output row is summed by one thread in a fixed order, so
// the result does not depend on the number of threads.
#include "rows16.hpp"
#include "threads.hpp"

#include <algorithm>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// lanes are structs of registers: a call left standing would pass them through memory
#define TERCET_INLINE inline __attribute__((always_inline))

using namespace tercet;

namespace {

constexpr int64_t kDepth = 192;      // columns of W in a panel: 24 KB beside 9 KB of x
constexpr int64_t kMostRows = 384;   // rows of x packed at a time, which bounds the scratch memory
constexpr int64_t kBlocksAtOnce = 4; // row blocks in one pass over x
constexpr int64_t kWorthThreads = 1 << 17;  // multiply-adds below which waking a thread costs more

struct Vector {
  const float* values;  // x, each group padded with zeros to whole runs
  const float* pairs;   // for 2-bit codes: tables of 16 per two columns
  const float* sums;    // of x in each group
};

struct Kernels {
  int tile_rows, tile_blocks;
  void (*pairs)(const Layout&, const float* x, int64_t columns, float* pairs);
  void (*vector)(const Weight&, const Vector&, int64_t block, int64_t count, float* out);
  void (*panel)(const Weight&, int64_t block, int64_t first, int64_t last, float* panel);
  void (*tile)(int rows, const float* panel, const float* x, int64_t depth, float* y);
};

namespace portable {
#include "lanes_portable.hpp"
#include "packed_product.hpp"
}  // namespace portable

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma,f16c")
#endif
namespace avx512 {
#include "lanes_avx512.hpp"
#include "packed_product.hpp"
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
namespace avx2 {
#include "lanes_avx2.hpp"
#include "packed_product.hpp"
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

enum Isa : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

Kernels kernels_of(int32_t isa, const Layout& layout) {
#if defined(__x86_64__)
  if (isa == kAvx512) return avx512::kernels_for(layout);
  if (isa == kAvx2) return avx2::kernels_for(layout);
#endif
  return portable::kernels_for(layout);
}

struct Call {
  Weight w;
  const void* x;
  const void* bias;
  void* y;
  int32_t number, bias_number;
  int64_t rows;
  Kernels kernels;

  // row `row` of x as float32, each group padded to whole runs, at to[0], to[stride], ...
  void unpack_row(int64_t row, float* to, int64_t stride) const {
    const Layout& layout = *w.layout;
    const int64_t padded = layout.runs_per_group * w.per_run();
    for (int64_t group = 0; group < layout.groups; ++group, to += padded * stride) {
      const int64_t first = group * layout.group;
      const int64_t count = std::min(layout.group, layout.columns - first);
      const int64_t at = row * layout.columns + first;
      if (number == kFloat32) {
        const float* from = static_cast<const float*>(x) + at;
        for (int64_t k = 0; k < count; ++k) to[k * stride] = from[k];
      } else {
        for (int64_t k = 0; k < count; ++k) to[k * stride] = read_number(x, number, at + k);
      }
      for (int64_t k = count; k < padded; ++k) to[k * stride] = 0.0f;
    }
  }

  void write(int64_t row, int64_t output, float value) const {
    if (bias) value += read_number(bias, bias_number, output);
    write_number(y, number, row * w.layout->rows + output, value);
  }
};

void zero_sums(const Weight& w, const float* x, float* sums) {
  const int64_t padded = w.layout->runs_per_group * w.per_run();
  for (int64_t group = 0; group < w.layout->groups; ++group, x += padded) {
    float sum = 0.0f;
    for (int64_t k = 0; k < padded; ++k) sum += x[k];
    sums[group] = sum;
  }
}

struct VectorJob {
  const Call& call;
  Vector x;
  int64_t row;

  static void run(void* context, long item) {
    const VectorJob& job = *static_cast<const VectorJob*>(context);
    const Weight& w = job.call.w;
    const int64_t block = item * kBlocksAtOnce;
    const int64_t count = std::min(kBlocksAtOnce, w.blocks() - block);
    alignas(64) float out[kBlocksAtOnce * 16];
    job.call.kernels.vector(w, job.x, block, count, out);
    const int64_t rows = std::min(count * 16, w.layout->rows - block * 16);
    for (int64_t r = 0; r < rows; ++r) job.call.write(job.row, block * 16 + r, out[r]);
  }
};

void multiply_row(const Call& call, int64_t row, int threads) {
  static thread_local std::vector<float> scratch;
  const Weight& w = call.w;
  const int64_t columns = w.padded_columns();
  const int64_t pairs = w.layout->bits == 2 ? columns * 8 : 0;
  scratch.resize(columns + pairs + w.layout->groups);
  float* values = scratch.data();
  call.unpack_row(row, values, 1);
  if (pairs) call.kernels.pairs(*w.layout, values, columns, values + columns);
  if (w.zero) zero_sums(w, values, values + columns + pairs);
  VectorJob job{call, {values, values + columns, values + columns + pairs}, row};
  const int64_t items = (w.blocks() + kBlocksAtOnce - 1) / kBlocksAtOnce;
  pool().run(items, threads, VectorJob::run, &job);
}

struct TileJob {
  const Call& call;
  int64_t first_row, rows;
  float* x;                 // tiles [columns][tile rows], one after the other
  std::vector<int> heights;  // rows of each tile
  std::vector<int64_t> starts;

  static void pack(void* context, long item) {
    const TileJob& job = *static_cast<const TileJob*>(context);
    const int height = job.heights[item];
    float* to = job.x + job.starts[item] * job.call.w.padded_columns();
    for (int r = 0; r < height; ++r)
      job.call.unpack_row(job.first_row + job.starts[item] + r, to + r, height);
  }

  static void run(void* context, long item) {
    static thread_local std::vector<float> scratch;
    const TileJob& job = *static_cast<const TileJob*>(context);
    const Weight& w = job.call.w;
    const Kernels& kernels = job.call.kernels;
    const int64_t blocks = kernels.tile_blocks, block = item * blocks, width = blocks * 16;
    scratch.assign(kDepth * width + job.rows * width, 0.0f);
    float *panel = scratch.data(), *sums = panel + kDepth * width;
    const int64_t columns = w.padded_columns(), depth_runs = kDepth / w.per_run();
    for (int64_t first = 0; first < w.runs(); first += depth_runs) {
      const int64_t last = std::min(first + depth_runs, w.runs());
      const int64_t depth = (last - first) * w.per_run();
      for (int64_t b = 0; b < std::min(blocks, w.blocks() - block); ++b)
        kernels.panel(w, block + b, first, last, panel + 16 * b);
      for (size_t tile = 0; tile < job.heights.size(); ++tile) {
        const int height = job.heights[tile];
        const float* x = job.x + job.starts[tile] * columns + first * w.per_run() * height;
        kernels.tile(height, panel, x, depth, sums + job.starts[tile] * width);
      }
    }
    const int64_t outputs = std::min(width, w.layout->rows - block * 16);
    for (int64_t r = 0; r < job.rows; ++r)
      for (int64_t o = 0; o < outputs; ++o)
        job.call.write(job.first_row + r, block * 16 + o, sums[r * width + o]);
  }
};

void multiply_rows(const Call& call, int64_t first_row, int64_t rows, int threads) {
  static thread_local std::vector<float> scratch;
  scratch.resize(rows * call.w.padded_columns());
  TileJob job{call, first_row, rows, scratch.data(), {}, {}};
  for (int64_t row = 0; row < rows;) {
    int height = 1;
    for (const int candidate : {12, 8, 4, 2})
      if (candidate <= call.kernels.tile_rows && candidate <= rows - row) {
        height = candidate;
        break;
      }
    job.heights.push_back(height), job.starts.push_back(row);
    row += height;
  }
  pool().run(job.heights.size(), threads, TileJob::pack, &job);
  const int64_t blocks = call.kernels.tile_blocks;
  pool().run((call.w.blocks() + blocks - 1) / blocks, threads, TileJob::run, &job);
}

}  // namespace

extern "C" {

// The best instruction set of this machine: 0 portable, 1 AVX2 with FMA and F16C, 2 AVX-512F.
int32_t tercet_best_isa() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f")) return kAvx512;
  if (avx2) return kAvx2;
#endif
  return kPortable;
}

void tercet_packed_product(const Layout* layout, const uint32_t* codes, const void* scale,
                          int32_t scale_number, const void* zero, int32_t zero_number,
                          const void* bias, int32_t bias_number, const void* x, void* y,
                          int32_t number, int64_t rows, int32_t threads, int32_t isa) {
  const Call call{{layout, codes, scale, zero, scale_number, zero_number},
                  x, bias, y, number, bias_number, rows, kernels_of(isa, *layout)};
  if (rows * layout->rows * layout->columns < kWorthThreads) threads = 1;
  if (rows == 1) return multiply_row(call, 0, threads);
  for (int64_t row = 0; row < rows; row += kMostRows)
    multiply_rows(call, row, std::min(kMostRows, rows - row), threads);
}

}  // extern "C"

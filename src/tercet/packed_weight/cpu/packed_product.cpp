// y[M, N] = x[M, K] W[N, K]^T + bias[N] on a CPU, W in the rows16 layout.
//
// One row of x: a pass over the codes, table lookup and FMA, bound by reading them. More rows: codes
// are decoded once per panel of kDepth columns into the first-level cache and multiplied from there
// by a register-tiled float product. Each output row is summed by one thread in a fixed order, so
// the result does not depend on the number of threads.
//
// Where the machine multiplies bytes faster than floats (AVX2 without AVX-512, AVX-512 with VNNI, Arm) and
// the levels of W are integers, one row of x is taken as integers: integers/.
//
// Where x is int8 codes with a scale a row, and levels are integers, sums are exact:
//   y = fma(sum over groups of scale * (exact sum - zero * sum of codes), x_scale, bias),
// rounded to y's type last; the same bits for one row of x as for many, and as on a GPU.
#include "arm_features.hpp"
#include "rows16.hpp"
#include "targets.hpp"
#include "threads.hpp"
#include "packed_weight/cpu/integers/segments.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

using namespace tercet;

namespace {

constexpr int64_t kDepth = 192;      // columns of W in a panel: 24 KB beside 9 KB of x
constexpr int64_t kMostRows = 384;   // rows of x packed at a time, which bounds the scratch memory
constexpr int64_t kBlocksAtOnce = 4; // row blocks in one pass over x
constexpr int64_t kItemsOfThread = 24;  // so many or more of one row's products, for threads that lag
constexpr int64_t kWorthThreads = 1 << 17;  // multiply-adds below which waking a thread costs more

struct Vector {
  const float* values;  // x, each group padded with zeros to whole runs
  const float* pairs;   // for 2-bit codes: tables of 16 per two columns
  const float* sums;    // of x in each group
  const Segments* segments;  // x as integers, where there are kernels for it
};

struct Kernels {
  int tile_rows, tile_blocks;
  void (*pairs)(const Layout&, const float* x, int64_t columns, float* pairs);
  void (*vector)(const Weight&, const Vector&, int64_t block, int64_t count, float* out);
  void (*panel)(const Weight&, int64_t block, int64_t first, int64_t last, float* panel);
  void (*tile)(int rows, const float* panel, const float* x, int64_t depth, float* y);
  void (*add_group)(const Weight&, int64_t block, int64_t blocks, int64_t group, float x_sum,
                    int32_t* sum, float* total);
  void (*scale_values)(float* values, int64_t count, float x_scale, const float* bias);
  // where the levels of W are integers and the machine multiplies those faster: x in segments, if it fits
  bool (*cut)(const Layout&, const float* x, Segments& segments) = nullptr;
  decltype(vector) integers = nullptr;
};

namespace portable {
#include "lanes_portable.hpp"
#include "packed_product.hpp"
}  // namespace portable

#if defined(__x86_64__)
TERCET_TARGET("avx512f,avx2,fma,f16c")
namespace avx512 {
#include "lanes_avx512.hpp"
#include "packed_product.hpp"
}  // namespace avx512
TERCET_TARGET_END
TERCET_TARGET("avx2,fma,f16c")
namespace avx2 {
#include "lanes_avx2.hpp"
#include "packed_product.hpp"
#include "packed_weight/cpu/integers/avx2.hpp"
}  // namespace avx2
TERCET_TARGET_END
TERCET_TARGET("avx512f,avx512bw,avx512vnni,avx2,fma,f16c")
namespace avx512vnni {
#include "lanes_avx512.hpp"
#include "packed_product.hpp"
#include "packed_weight/cpu/integers/vnni.hpp"
}  // namespace avx512vnni
TERCET_TARGET_END
#elif defined(__aarch64__)
namespace neon {
#include "lanes_neon.hpp"
#include "packed_product.hpp"
#include "packed_weight/cpu/integers/neon.hpp"
}  // namespace neon
TERCET_TARGET("arch=armv8.2-a+dotprod")
namespace dotprod {
#include "lanes_neon.hpp"
#include "packed_product.hpp"
#include "packed_weight/cpu/integers/dotprod.hpp"
}  // namespace dotprod
TERCET_TARGET_END
#endif

template <bool exact>
Kernels kernels_of(int32_t isa, const Layout& layout) {
#if defined(__x86_64__)
  if (isa == kAvx512Vnni) return avx512vnni::kernels_with_integers<exact>(layout);
  if (isa == kAvx512) return avx512::kernels_for<exact>(layout);
  if (isa == kAvx2) return avx2::kernels_with_integers<exact>(layout);
#elif defined(__aarch64__)
  if (isa == kDotprod) return dotprod::kernels_with_integers<exact>(layout);
  if (isa == kNeon) return neon::kernels_with_integers<exact>(layout);
#endif
  return portable::kernels_for<exact>(layout);
}

struct Call {
  Weight w;
  const void* x;
  const void* bias;
  const float* x_scale;  // of each row of x, whose codes are int8; null where x is numbers
  void* y;
  int32_t number, bias_number, y_number;
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

  // values[count] of outputs `first` on, one row: the first `outputs` of them are written to y
  void write(int64_t row, int64_t first, int64_t outputs, float* values, int64_t count) const {
    const int64_t at = row * w.layout->rows + first;
    if (x_scale) {
      alignas(64) float offsets[kBlocksAtOnce * 16] = {};
      if (bias)
        for (int64_t i = 0; i < outputs; ++i)
          offsets[i] = read_number(bias, bias_number, first + i);
      kernels.scale_values(values, count, x_scale[row], offsets);
    } else if (bias) {
      for (int64_t i = 0; i < outputs; ++i) values[i] += read_number(bias, bias_number, first + i);
    }
    for (int64_t i = 0; i < outputs; ++i) write_number(y, y_number, at + i, values[i]);
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
  int64_t row, blocks;  // blocks of an item
  decltype(Kernels::vector) multiply;

  static void run(void* context, long item) {
    const VectorJob& job = *static_cast<const VectorJob*>(context);
    const Weight& w = job.call.w;
    const int64_t end = std::min((item + 1) * job.blocks, w.blocks());
    for (int64_t block = item * job.blocks; block < end; block += kBlocksAtOnce) {
      const int64_t count = std::min(kBlocksAtOnce, end - block);
      alignas(64) float out[kBlocksAtOnce * 16];
      job.multiply(w, job.x, block, count, out);
      const int64_t rows = std::min(count * 16, w.layout->rows - block * 16);
      job.call.write(job.row, block * 16, rows, out, count * 16);
    }
  }
};

// Blocks that a thread takes at a time: whole kBlocksAtOnce, and of a large weight more, one behind
// the other as memory is read best.
int64_t blocks_of_item(int64_t blocks, int threads) {
  const int64_t share = blocks / (threads * kItemsOfThread) / kBlocksAtOnce * kBlocksAtOnce;
  return std::max(share, kBlocksAtOnce);
}

void multiply_row(const Call& call, int64_t row, int threads) {
  static thread_local std::vector<float> scratch;
  static thread_local Segments segments;
  const Weight& w = call.w;
  const int64_t columns = w.padded_columns();
  const int64_t pairs = w.layout->bits == 2 ? columns * 8 : 0;
  scratch.resize(columns + pairs + w.layout->groups);
  float* values = scratch.data();
  call.unpack_row(row, values, 1);
  const bool integers = call.kernels.cut && call.kernels.cut(*w.layout, values, segments);
  if (pairs && !integers) call.kernels.pairs(*w.layout, values, columns, values + columns);
  if (w.zero) zero_sums(w, values, values + columns + pairs);
  const Vector x{values, values + columns, values + columns + pairs, &segments};
  const int64_t blocks = blocks_of_item(w.blocks(), threads);
  VectorJob job{call, x, row, blocks, integers ? call.kernels.integers : call.kernels.vector};
  const int64_t items = (w.blocks() + blocks - 1) / blocks;
  pool().run(items, threads, VectorJob::run, &job);
}

struct TileJob {
  const Call& call;
  int64_t first_row, rows;
  float* x;                 // tiles [columns][tile rows], one after the other
  std::vector<int> heights;  // rows of each tile
  std::vector<int64_t> starts;
  std::vector<float> sums;  // of x's codes [rows][groups], where W has zero points and sums are exact

  static void pack(void* context, long item) {
    TileJob& job = *static_cast<TileJob*>(context);
    const int height = job.heights[item];
    float* to = job.x + job.starts[item] * job.call.w.padded_columns();
    for (int r = 0; r < height; ++r)
      job.call.unpack_row(job.first_row + job.starts[item] + r, to + r, height);
    if (!job.sums.empty()) job.add_up(item, to);
  }

  void add_up(long item, const float* tile) {
    const Weight& w = call.w;
    const int64_t padded = w.layout->runs_per_group * w.per_run(), height = heights[item];
    for (int64_t k = 0; k < w.padded_columns(); ++k)
      for (int64_t r = 0; r < height; ++r)
        sums[(starts[item] + r) * w.layout->groups + k / padded] += tile[k * height + r];
  }

  static void run(void* context, long item) {
    static thread_local std::vector<float> scratch;
    const TileJob& job = *static_cast<const TileJob*>(context);
    const Weight& w = job.call.w;
    const Kernels& kernels = job.call.kernels;
    const int64_t blocks = kernels.tile_blocks, block = item * blocks, width = blocks * 16;
    const bool exact = job.call.x_scale;
    // exact: integer sums of one group, which are scaled into the totals at its end
    scratch.assign(kDepth * width + (exact ? 2 : 1) * job.rows * width, 0.0f);
    float *panel = scratch.data(), *sums = panel + kDepth * width;
    float* totals = exact ? sums + job.rows * width : sums;
    const int64_t there = std::min(blocks, w.blocks() - block);
    const int64_t depth_runs = kDepth / w.per_run(), group_runs = w.layout->runs_per_group;
    for (int64_t first = 0, last; first < w.runs(); first = last) {
      const int64_t group = first / group_runs, group_end = (group + 1) * group_runs;
      last = std::min(first + depth_runs, exact ? group_end : w.runs());
      for (int64_t b = 0; b < there; ++b)
        kernels.panel(w, block + b, first, last, panel + 16 * b);
      job.multiply_panel(panel, first, last, sums);
      if (!exact || last != group_end) continue;
      for (int64_t r = 0; r < job.rows; ++r)
        kernels.add_group(w, block, there, group, job.x_sum(r, group),
                          reinterpret_cast<int32_t*>(sums + r * width), totals + r * width);
    }
    const int64_t outputs = std::min(width, w.layout->rows - block * 16);
    for (int64_t r = 0; r < job.rows; ++r)
      job.call.write(job.first_row + r, block * 16, outputs, totals + r * width, width);
  }

  // sums[row][width] += panel^T x over the runs [first, last)
  void multiply_panel(const float* panel, int64_t first, int64_t last, float* sums) const {
    const int64_t columns = call.w.padded_columns(), per_run = call.w.per_run();
    const int64_t width = call.kernels.tile_blocks * 16;
    for (size_t tile = 0; tile < heights.size(); ++tile) {
      const int height = heights[tile];
      const float* from = x + starts[tile] * columns + first * per_run * height;
      call.kernels.tile(height, panel, from, (last - first) * per_run, sums + starts[tile] * width);
    }
  }

  float x_sum(int64_t row, int64_t group) const {
    return sums.empty() ? 0.0f : sums[row * call.w.layout->groups + group];
  }
};

void multiply_rows(const Call& call, int64_t first_row, int64_t rows, int threads) {
  static thread_local std::vector<float> scratch;
  scratch.resize(rows * call.w.padded_columns());
  TileJob job{call, first_row, rows, scratch.data(), {}, {}, {}};
  if (call.x_scale && call.w.zero) job.sums.assign(rows * call.w.layout->groups, 0.0f);
  for (int64_t row = 0; row < rows;) {
    int height = 1;
    for (const int candidate : {12, 8, 6, 4, 2})
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

// The best instruction set of this machine (Isa).
int32_t tercet_best_isa() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool bytes = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
  if (avx2 && __builtin_cpu_supports("avx512f")) return bytes ? kAvx512Vnni : kAvx512;
  if (avx2) return kAvx2;
#elif defined(__aarch64__)
  return has_dotprod() ? kDotprod : kNeon;
#endif
  return kPortable;
}

// x_scale [rows]: x is int8 codes, and the levels of W are integers. null: x is of y's type.
void tercet_packed_product(const Layout* layout, const uint32_t* codes, const void* scale,
                          int32_t scale_number, const void* zero, int32_t zero_number,
                          const void* bias, int32_t bias_number, const void* x, void* y,
                          int32_t y_number, int64_t rows, int32_t threads, int32_t isa,
                          const float* x_scale) {
  const Call call{{layout, codes, scale, zero, scale_number, zero_number},
                  x, bias, x_scale, y, x_scale ? kInt8 : y_number, bias_number, y_number, rows,
                  x_scale ? kernels_of<true>(isa, *layout) : kernels_of<false>(isa, *layout)};
  if (rows * layout->rows * layout->columns < kWorthThreads) threads = 1;
  if (rows == 1) return multiply_row(call, 0, threads);
  for (int64_t row = 0; row < rows; row += kMostRows)
    multiply_rows(call, row, std::min(kMostRows, rows - row), threads);
}

}  // extern "C"

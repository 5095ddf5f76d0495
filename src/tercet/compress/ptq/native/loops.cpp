// The inner loops of post-training quantization: what columns.py and scale_search.py here call.
//
// Columns follow one another, rows do not: 64 rows at a time go through all columns of a block. The
// changes that earlier columns of the block made are subtracted when a column's turn comes, so a
// column is written once; later blocks get theirs by a matrix product outside.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "packed_weight/cpu/targets.hpp"
#include "packed_weight/cpu/threads.hpp"

// registers in structs: a call left standing would pass them through memory
#define TERCET_INLINE inline __attribute__((always_inline))

namespace tercet {
namespace {

constexpr int64_t kLanes = 64;
constexpr int64_t kMostColumns = 128;  // of a block: 32 KB of changes, within the first-level cache

// Mirrors tercet.compress.ptq.native.columns.Block, field by field.
struct Block {
  int64_t rows, columns;  // of the weight, and of this block
  int64_t stride;         // between rows of matrix
  float lowest, highest;  // levels
  const float* matrix;    // [columns, stride]: how much of each change a column loses
  const float* pivot;     // [columns]
  const float *scale, *inverse, *zero;  // [columns, rows]; zero may be null
};

struct SpreadJob {
  const Block& block;
  const float* rest;
  float *levels, *errors;
};

struct SweepJob {
  const Block& block;
  const float *quantized, *slope;
  float *levels, *change;
  double* gains;
};

// Mirrors tercet.compress.ptq.native.scale_search.Search, field by field.
struct Search {
  int64_t columns, group, groups;
  int32_t steps;
  float lowest, highest;
  const float* importance;  // [columns]; may be null
};

struct SearchJob {
  const Search& search;
  const float *weight, *scale, *zero;
  int32_t* best;
};

namespace portable {
#include "lanes.hpp"
#include "columns.hpp"
#include "scale_search.hpp"
}  // namespace portable

#if defined(__x86_64__)
TERCET_TARGET("avx512f,avx2,fma")
namespace avx512 {
#include "lanes.hpp"
#include "columns.hpp"
#include "scale_search.hpp"
}  // namespace avx512
TERCET_TARGET_END
TERCET_TARGET("avx2,fma")
namespace avx2 {
#include "lanes.hpp"
#include "columns.hpp"
#include "scale_search.hpp"
}  // namespace avx2
TERCET_TARGET_END
#endif

enum Isa : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

struct Tasks {
  Pool::Task spread, sweep, search;
};

Tasks tasks_of(int32_t isa) {
#if defined(__x86_64__)
  if (isa >= kAvx512 && __builtin_cpu_supports("avx512f"))
    return {avx512::spread_lanes, avx512::sweep_lanes, avx512::search_row};
  if (isa >= kAvx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {avx2::spread_lanes, avx2::sweep_lanes, avx2::search_row};
#endif
  return {portable::spread_lanes, portable::sweep_lanes, portable::search_row};
}

int64_t items_of(const Block& block) { return (block.rows + kLanes - 1) / kLanes; }

}  // namespace
}  // namespace tercet

// isa: the best instruction set to use, as tercet.environment.CPU_ISAS counts them.
extern "C" {

// rest [columns, rows] to levels and errors, (rest - rounded) * pivot, of the same shape.
void tercet_spread(const tercet::Block* block, const float* rest, float* levels, float* errors,
                   int32_t isa, int32_t threads) {
  using namespace tercet;
  SpreadJob job{*block, rest, levels, errors};
  pool().run(items_of(*block), threads, tasks_of(isa).spread, &job);
}

// Each column to the level that is best with all others held. quantized, slope, levels and change
// [columns, rows]; gains [ceil(rows / 64)]: by how much the loss falls.
void tercet_sweep(const tercet::Block* block, const float* quantized, const float* slope,
                  float* levels, float* change, double* gains, int32_t isa, int32_t threads) {
  using namespace tercet;
  SweepJob job{*block, quantized, slope, levels, change, gains};
  pool().run(items_of(*block), threads, tasks_of(isa).sweep, &job);
}

// weight [rows, columns], trial scales and zero points [rows, groups, steps] (zero may be null) to
// the step of least error [rows, groups]; -1 where no error is finite.
void tercet_search_scale(const tercet::Search* search, const float* weight, const float* scale,
                         const float* zero, int32_t* best, int64_t rows, int32_t isa,
                         int32_t threads) {
  using namespace tercet;
  SearchJob job{*search, weight, scale, zero, best};
  pool().run(rows, threads, tasks_of(isa).search, &job);
}

}  // extern "C"

// attention of 16-bit floats on Hopper (FlashAttention-3, Shah et al. 2024, arXiv:2407.08608).
//
// A block takes 64 queries of one head for each of its consumer warpgroups. A producer warp copies
// tiles of keys and values ahead by TMA. While the tensor cores multiply one tile's shares with its
// values and the queries with the next tile's keys, the shares of that tile are still to be made:
// each warpgroup overlaps its own products with its own softmax, and barriers let one make shares
// while the other multiplies. Tiles of positions come from the last to the first, so that those on
// the diagonal come first; tiles of queries that see most come first, too.
#pragma once
#include <type_traits>

#include "instructions.cuh"
#include "task.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#error "wgmma and setmaxnreg are of compute capability 9.0 alone: compile for sm_90a"
#endif

constexpr int WARPGROUP = 128, QUERIES = 64, CHUNK = 64, ROW = 128;  // a chunk: 64 columns, 128 bytes a row

template <class X_, int WIDTH_, int WARPGROUPS_, int POSITIONS_, int STAGES_, bool CAPPED_>
struct Shape {
  using X = X_;
  static constexpr int WIDTH = WIDTH_, WARPGROUPS = WARPGROUPS_, POSITIONS = POSITIONS_, STAGES = STAGES_;
  static constexpr bool CAPPED = CAPPED_;
  static constexpr int CHUNKS = WIDTH / CHUNK, TILE = WARPGROUPS * QUERIES;
  static constexpr int THREADS = (WARPGROUPS + 1) * WARPGROUP;
  static constexpr int REGISTERS = WARPGROUPS == 2 ? 240 : 160;
  static constexpr int QUERY_BYTES = QUERIES * ROW, TILE_BYTES = POSITIONS * ROW;  // of a chunk
  static constexpr int Q = 0, KEYS = WARPGROUPS * CHUNKS * QUERY_BYTES;
  static constexpr int VALUES = KEYS + STAGES * CHUNKS * TILE_BYTES;
  static constexpr int BARRIERS = VALUES + STAGES * CHUNKS * TILE_BYTES;
  static constexpr int COUNT = 2 + 4 * STAGES;
  static constexpr int BYTES = BARRIERS + 8 * COUNT + 1024;  // TMA's swizzle wants multiples of 1024
  // float16 has no exponents for shares below 2^-24 of the largest: all are multiplied by 2^12
  static constexpr float SHIFT = std::is_same<X, __half>::value ? 12.0f : 0.0f;
};

// Where barriers are: of queries, and of each stage of keys and of values, full and empty.
template <class S>
struct Barriers {
  uint32_t first;
  __device__ uint32_t queries_full() const { return first; }
  __device__ uint32_t queries_empty() const { return first + 8; }
  __device__ uint32_t keys_full(int stage) const { return first + 8 * (2 + stage); }
  __device__ uint32_t keys_empty(int stage) const { return first + 8 * (2 + S::STAGES + stage); }
  __device__ uint32_t values_full(int stage) const { return first + 8 * (2 + 2 * S::STAGES + stage); }
  __device__ uint32_t values_empty(int stage) const { return first + 8 * (2 + 3 * S::STAGES + stage); }
};

// A stage of the pipelines and the parity of its phase.
template <int STAGES>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// One block's next tile of queries: the head and sequence, and which tiles of positions it sees.
template <class S>
struct Tile {
  int query, head, sequence;  // of the tile's first query
  int begin, end;             // tiles of positions, `end` not included

  // number `round` of this block; false where there is none
  __device__ bool find(const Task& task, int round) {
    const int heads = task.heads * task.batch, tiles = (task.fresh + S::TILE - 1) / S::TILE;
    const int place = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int number = round * gridDim.x + place;
    if (number >= heads * tiles) return false;
    query = (tiles - 1 - number / heads) * S::TILE;
    const int of_heads = number % heads;
    head = of_heads % task.heads, sequence = of_heads / task.heads;
    int low = 0, high = task.length;
    if (task.causal) {
      const int position = task.length - task.fresh + query;
      high = min(high, position + S::TILE);
      low = max(0, position - task.window + 1);
    }
    begin = low / S::POSITIONS;
    end = max(begin, (high + S::POSITIONS - 1) / S::POSITIONS);
    if (high <= low) end = begin;
    return true;
  }
};

template <class S>
__device__ void produce(const Task& task, const CUtensorMap* q_map, const CUtensorMap* keys_map,
                        const CUtensorMap* values_map, uint32_t shared, Barriers<S> barriers) {
  PipelineState<S::STAGES> keys, values;
  Tile<S> tile;
  const auto load_keys = [&](int number, int group) {
    mbarrier::wait(barriers.keys_empty(keys.stage), keys.parity ^ 1);
    mbarrier::expect(barriers.keys_full(keys.stage), S::CHUNKS * S::TILE_BYTES);
    for (int chunk = 0; chunk < S::CHUNKS; chunk++)
      tma::load(shared + S::KEYS + (keys.stage * S::CHUNKS + chunk) * S::TILE_BYTES, keys_map,
                barriers.keys_full(keys.stage), chunk * CHUNK, number * S::POSITIONS, group,
                tile.sequence);
    keys.advance();
  };
  const auto load_values = [&](int number, int group) {
    mbarrier::wait(barriers.values_empty(values.stage), values.parity ^ 1);
    mbarrier::expect(barriers.values_full(values.stage), S::CHUNKS * S::TILE_BYTES);
    for (int chunk = 0; chunk < S::CHUNKS; chunk++)
      tma::load(shared + S::VALUES + (values.stage * S::CHUNKS + chunk) * S::TILE_BYTES, values_map,
                barriers.values_full(values.stage), chunk * CHUNK, number * S::POSITIONS, group,
                tile.sequence);
    values.advance();
  };
  uint32_t parity = 0;
  for (int round = 0; tile.find(task, round); round++) {
    const int group = tile.head / (task.heads / task.groups);
    if (tile.begin == tile.end) continue;
    mbarrier::wait(barriers.queries_empty(), parity ^ 1);
    parity ^= 1;
    mbarrier::expect(barriers.queries_full(), S::WARPGROUPS * S::CHUNKS * S::QUERY_BYTES);
    for (int box = 0; box < S::WARPGROUPS * S::CHUNKS; box++)
      tma::load(shared + S::Q + box * S::QUERY_BYTES, q_map, barriers.queries_full(),
                box % S::CHUNKS * CHUNK, tile.query + box / S::CHUNKS * QUERIES, tile.head,
                tile.sequence);
    load_keys(tile.end - 1, group);
    for (int number = tile.end - 2; number >= tile.begin; number--) {
      load_keys(number, group);
      load_values(number + 1, group);
    }
    load_values(tile.begin, group);
  }
}

// What a thread keeps of its two rows of queries, 8 apart.
struct Rows {
  float top[2], total[2];
};

// Scores of what a row does not see become -infinity.
//
// place: of the thread's first row among all positions; column: of its first score.
template <int COUNT>
__device__ inline void mask(float (&s)[COUNT], const Task& task, int place, int column) {
#pragma unroll
  for (int row = 0; row < 2; row++, place += 8) {
    const int low = task.causal ? place - task.window + 1 - column : -column;
    const int high = (task.causal ? min(task.length, place + 1) : task.length) - column;
#pragma unroll
    for (int i = 2 * row; i < COUNT; i += 4)
#pragma unroll
      for (int j = 0; j < 2; j++)
        if (2 * (i - 2 * row) + j < low || 2 * (i - 2 * row) + j >= high) s[i + j] = -INFINITY;
  }
}

// Of scores shares, relative to the largest so far of each row, and what earlier ones shrink by.
template <class S, int COUNT>
__device__ inline void make_shares(float (&s)[COUNT], Rows& rows, float (&shrunk)[2], float scale) {
#pragma unroll
  for (int row = 0; row < 2; row++) {
    float top = rows.top[row];
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) top = fmaxf(top, fmaxf(s[i + 2 * row], s[i + 2 * row + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    // of a row that has seen nothing yet -infinity minus itself would be NaN
    const float base = top == -INFINITY ? 0.0f : top * scale;
    shrunk[row] = exp2_fast(rows.top[row] * scale - base);
    rows.top[row] = top;
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
#pragma unroll
      for (int j = 2 * row; j < 2 * row + 2; j++) {
        s[i + j] = exp2_fast(fmaf(s[i + j], scale, S::SHIFT - base));
        total += s[i + j];
      }
    rows.total[row] = rows.total[row] * shrunk[row] + total;
  }
}

// cap tanh(s scale / cap) in bits, by the exponential of a number below 0; steep and most as in the task
template <int COUNT>
__device__ inline void cap_scores(float (&s)[COUNT], float steep, float most) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const float shrunk = exp2_fast(steep * fabsf(s[i]));
    s[i] = copysignf(__fdividef(1.0f - shrunk, 1.0f + shrunk) * most, s[i]);
  }
}

template <class S>
__device__ void consume(const Task& task, const CUtensorMap* y_map, uint32_t shared,
                        Barriers<S> barriers) {
  using X = typename S::X;
  constexpr int SCORES = S::POSITIONS / 2, MIXED = S::WIDTH / 2, STEPS = S::POSITIONS / 16;
  const int warpgroup = threadIdx.x / WARPGROUP - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const uint32_t q = shared + S::Q + warpgroup * S::CHUNKS * S::QUERY_BYTES;
  // barriers 1 to WARPGROUPS: which may multiply next; behind them: of one warpgroup
  constexpr int ALL = S::WARPGROUPS * WARPGROUP;
  const auto wait_to_multiply = [&] { barrier_sync<ALL>(1 + warpgroup); };
  const auto let_others_multiply = [&] {
#pragma unroll
    for (int other = 1; other < S::WARPGROUPS; other++)
      barrier_arrive<ALL>(1 + (warpgroup + other) % S::WARPGROUPS);
  };
  // at first they multiply in order
  for (int before = 0; before < warpgroup; before++) barrier_arrive<ALL>(1 + before);
  PipelineState<S::STAGES> keys, values;
  uint32_t parity = 0;
  float s[SCORES], mixed[MIXED];
  uint32_t shares[STEPS][4];
  Tile<S> tile;
  for (int round = 0; tile.find(task, round); round++) {
    const int query = tile.query + warpgroup * QUERIES;
    const int first = task.length - task.fresh + query;  // its place among all positions
    Rows rows = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < MIXED; i++) mixed[i] = 0.0f;
    const auto multiply_keys = [&] {
      const uint32_t k = shared + S::KEYS + keys.stage * S::CHUNKS * S::TILE_BYTES;
      wgmma::pin(s);
      wgmma::fence();
#pragma unroll
      for (int step = 0; step < S::WIDTH / 16; step++) {
        const uint32_t at = step % 4 * 32;
        wgmma::scores<X, S::POSITIONS>(s, wgmma::descriptor(q + step / 4 * S::QUERY_BYTES + at),
                                       wgmma::descriptor(k + step / 4 * S::TILE_BYTES + at), step > 0);
      }
      wgmma::commit();
    };
    const auto multiply_values = [&] {
      const uint32_t v = shared + S::VALUES + values.stage * S::CHUNKS * S::TILE_BYTES;
      wgmma::pin(mixed);
      wgmma::fence();
#pragma unroll
      for (int step = 0; step < STEPS; step++)
        wgmma::mix<X, S::WIDTH>(mixed, shares[step], wgmma::transposed<S::TILE_BYTES>(v + step * 16 * ROW));
      wgmma::commit();
    };
    const auto free_keys = [&] {
      if (lane == 0) mbarrier::arrive(barriers.keys_empty(keys.stage));
      keys.advance();
    };
    const auto free_values = [&] {
      if (lane == 0) mbarrier::arrive(barriers.values_empty(values.stage));
      values.advance();
    };
    float shrunk[2];
    const auto soften = [&](int number) {
      if constexpr (S::CAPPED) cap_scores(s, task.steep, task.most);
      const int begin = number * S::POSITIONS, end = begin + S::POSITIONS;
      const bool unmasked = !task.causal || (begin >= first + QUERIES - task.window && end <= first + 1);
      if (!unmasked || end > task.length)
        mask(s, task, first + warp * 16 + lane / 4, begin + lane % 4 * 2);
      make_shares<S>(s, rows, shrunk, S::CAPPED ? 1.0f : task.scale);
    };
    const auto round_shares = [&] {
#pragma unroll
      for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          shares[step][i] = pack<X>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
    };
    if (tile.begin < tile.end) {
      mbarrier::wait(barriers.queries_full(), parity);
      parity ^= 1;
      mbarrier::wait(barriers.keys_full(keys.stage), keys.parity);
      wait_to_multiply();
      multiply_keys();
      let_others_multiply();
      wgmma::wait<0>();
      wgmma::pin(s);
      free_keys();
      soften(tile.end - 1);
      round_shares();
      for (int number = tile.end - 2; number >= tile.begin; number--) {
        mbarrier::wait(barriers.keys_full(keys.stage), keys.parity);
        wait_to_multiply();
        multiply_keys();
        mbarrier::wait(barriers.values_full(values.stage), values.parity);
        multiply_values();
        let_others_multiply();
        wgmma::wait<1>();
        wgmma::pin(s);
        free_keys();
        soften(number);
        wgmma::wait<0>();
        wgmma::pin(mixed);
        free_values();
#pragma unroll
        for (int i = 0; i < MIXED; i++) mixed[i] *= shrunk[i >> 1 & 1];
        round_shares();
      }
      mbarrier::wait(barriers.values_full(values.stage), values.parity);
      multiply_values();
      wgmma::wait<0>();
      wgmma::pin(mixed);
      free_values();
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
      float& total = rows.total[row];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      total = total == 0.0f ? 0.0f : 1.0f / total;
    }
    // where this warpgroup's queries were; a tile that sees nothing has none there
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < S::WIDTH / 16; step++) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; i++)
        packed[i] = pack<X>(mixed[8 * step + 2 * i] * rows.total[i & 1],
                            mixed[8 * step + 2 * i + 1] * rows.total[i & 1]);
      const int unit = step % 4 * 2 + lane / 16;
      store_matrices(q + step / 4 * S::QUERY_BYTES + row * ROW + (unit ^ row & 7) * 16, packed);
    }
    tma::share();
    barrier_sync<WARPGROUP>(1 + S::WARPGROUPS + warpgroup);
    if (threadIdx.x % WARPGROUP == 0) {
      if (query < task.fresh)
        for (int chunk = 0; chunk < S::CHUNKS; chunk++)
          tma::store(y_map, q + chunk * S::QUERY_BYTES, chunk * CHUNK, query, tile.head, tile.sequence);
      tma::wait_for_stores<0>();
      if (tile.begin < tile.end) mbarrier::arrive(barriers.queries_empty());
    }
    // the next tile's results are written there, too
    if (tile.begin == tile.end) barrier_sync<WARPGROUP>(1 + S::WARPGROUPS + warpgroup);
  }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    attend(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap keys_map,
           const __grid_constant__ CUtensorMap values_map, const __grid_constant__ CUtensorMap y_map,
           const Task task) {
  extern __shared__ uint8_t memory[];
  const uint32_t shared = (mbarrier::address_of(memory) + 1023) & ~1023u;
  const Barriers<S> barriers{shared + S::BARRIERS};
  if (threadIdx.x == 0) {
    mbarrier::init(barriers.queries_full(), 1);
    mbarrier::init(barriers.queries_empty(), S::WARPGROUPS);
    for (int stage = 0; stage < S::STAGES; stage++) {
      mbarrier::init(barriers.keys_full(stage), 1);
      mbarrier::init(barriers.values_full(stage), 1);
      mbarrier::init(barriers.keys_empty(stage), S::WARPGROUPS * 4);
      mbarrier::init(barriers.values_empty(stage), S::WARPGROUPS * 4);
    }
    mbarrier::publish();
  }
  __syncthreads();
  if (threadIdx.x < WARPGROUP) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) produce<S>(task, &q_map, &keys_map, &values_map, shared, barriers);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
    consume<S>(task, &y_map, shared, barriers);
  }
}

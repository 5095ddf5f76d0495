// What a decoder does between its linear layers: all of it for one new position a sequence, all but
// attention for more.
//
// In torch these are some twenty operations a layer, each of which costs more to start than to run
// for one position, and for many waits for threads of its own beside those of the products.
// Everything is float32; sums run in sixteen chains, so that they become vector instructions.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "packed_weight/cpu/bound_product.hpp"
#include "packed_weight/cpu/targets.hpp"
#include "packed_weight/cpu/threads.hpp"

#if defined(__x86_64__) && defined(__linux__)
#define TERCET_CLONES \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define TERCET_CLONES
#endif

namespace {

constexpr int64_t kLanes = 16;
// below so many multiplications a second thread costs more than it brings
constexpr int64_t kWorthThreads = 1 << 17;
// rows that a thread takes at a time
constexpr int64_t kRowsOfItem = 16;
// positions that are attended to at a time, whatever the number of threads
constexpr int64_t kSplit = 128;

#include "models/decoder/native/int4_rows.hpp"

TERCET_INLINE float sum(float* lanes) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

TERCET_INLINE float dot(const float* a, const float* b, int64_t count) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  for (int64_t j = 0; i < count; ++i, ++j) lanes[j] += a[i] * b[i];
  return sum(lanes);
}

TERCET_INLINE void normalize(const float* x, const float* weight, float epsilon, int64_t count,
                             float* y) {
  const float inverse = 1.0f / std::sqrt(dot(x, x, count) / count + epsilon);
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * inverse * weight[i];
}

struct Attention {
  int64_t heads, key_value_heads, dim;
  int64_t batch_stride, head_stride;  // of keys and values, in elements
  int64_t first, length;              // positions that are seen: [first, length)
  int64_t count;                      // of them new, the last ones; attended from if it is one
  float scale, cap, epsilon;          // cap 0 for none
  float *qkv, *out;
  void *keys, *values;  // at position 0 of batch 0, head 0
  void *key_scales, *value_scales;  // float32 of each position of a head, bfloat16 of each group; or null
  const float* key_offset;  // [key_value_heads, dim], taken off turned keys of 4 bits; or null
  int64_t bits;             // of a number: 32, float32; 8, int8; 4, rows of int4_rows.hpp
  const float *cos, *sin;  // [count, dim], the first half of sin negated
  const float *query_norm, *key_norm;  // [dim] of each head, or of all of a token together; or null
  int32_t norm_across_heads;
  int32_t isa;
  float* slices;  // [batch * heads][splits] of what a split gives: see attend_split

  int64_t group() const { return heads / key_value_heads; }
  int64_t token() const { return (heads + 2 * key_value_heads) * dim; }
  int64_t row() const { return bits == 4 ? dim / 2 : dim; }  // elements of a key or value
  int64_t splits() const { return (length - first + kSplit - 1) / kSplit; }
  int64_t slice_size() const { return dim + 2; }
};

enum Gate : int32_t { kSilu, kGeluTanh };

TERCET_INLINE void rotate(float* head, int64_t dim, const float* by_cos, const float* by_sin) {
  const int64_t half = dim / 2;
  float *__restrict low = head, *__restrict high = head + half;
  const float *__restrict cos = by_cos, *__restrict sin = by_sin;
  for (int64_t i = 0; i < half; ++i) {
    const float x = low[i], y = high[i];
    low[i] = x * cos[i] + y * sin[i];
    high[i] = y * cos[i + half] + x * sin[i + half];
  }
}

// Normalizes and rotates `heads` heads of a token that lie side by side.
TERCET_INLINE void norm_and_rotate(const Attention& a, float* first, int64_t heads, const float* norm,
                                   int64_t at) {
  if (norm && a.norm_across_heads) normalize(first, norm, a.epsilon, heads * a.dim, first);
  for (int64_t h = 0; h < heads; ++h) {
    float* head = first + h * a.dim;
    if (norm && !a.norm_across_heads) normalize(head, norm, a.epsilon, a.dim, head);
    rotate(head, a.dim, a.cos + at * a.dim, a.sin + at * a.dim);
  }
}

// Row codes of tercet/packed_weight/row_codes.py, int8; the scale.
TERCET_INLINE float quantize_row(const float* row, int64_t count, int8_t* codes) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::fabs(row[i]) > most ? std::fabs(row[i]) : most;
  for (int64_t i = 0; i < count; ++i)
    if (std::isnan(row[i])) most = row[i];
  const float scale = most / 127.0f;
  if (!(scale > 0) || std::isinf(scale)) {
    std::memset(codes, 0, count);
    return scale;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float ratio = std::nearbyint(row[i] / scale);
    codes[i] = static_cast<int8_t>(ratio > 127.0f ? 127.0f : (ratio < -127.0f ? -127.0f : ratio));
  }
  return scale;
}

// Stores a new row of keys or values, whose first element is element `at`.
TERCET_INLINE void store_row(const Attention& a, const float* row, void* rows, void* scales, int64_t at) {
  const int64_t number = at / a.row();
  if (a.bits == 4)
    quantize_int4_row(row, a.dim, static_cast<uint8_t*>(rows) + at,
                      static_cast<uint16_t*>(scales) + number * 2 * groups_of_row(a.dim));
  else if (a.bits == 8)
    static_cast<float*>(scales)[number] = quantize_row(row, a.dim, static_cast<int8_t*>(rows) + at);
  else std::memcpy(static_cast<float*>(rows) + at, row, a.dim * sizeof(float));
}

// Keys of a token as 4 bits want them, and queries that are attended from.
TERCET_INLINE void hadamard_token(const Attention& a, float* queries, float* keys) {
  for (int64_t head = 0; a.out && head < a.heads; ++head) hadamard_row(queries + head * a.dim, a.dim);
  for (int64_t head = 0; head < a.key_value_heads; ++head) hadamard_row(keys + head * a.dim, a.dim);
  if (a.key_offset)
    for (int64_t i = 0; i < a.key_value_heads * a.dim; ++i) keys[i] -= a.key_offset[i];
}

// Makes the queries of one new position of a sequence ready, and stores its keys and values.
TERCET_CLONES void prepare_token(const Attention& a, int64_t item) {
  const int64_t batch = item / a.count, at = item % a.count;
  float *queries = a.qkv + item * a.token(), *keys = queries + a.heads * a.dim;
  const float* values = keys + a.key_value_heads * a.dim;
  norm_and_rotate(a, queries, a.heads, a.query_norm, at);
  norm_and_rotate(a, keys, a.key_value_heads, a.key_norm, at);
  if (a.bits == 4) hadamard_token(a, queries, keys);
  for (int64_t head = 0; head < a.key_value_heads; ++head) {
    const int64_t position = a.length - a.count + at;
    const int64_t to = batch * a.batch_stride + head * a.head_stride + position * a.row();
    store_row(a, keys + head * a.dim, a.keys, a.key_scales, to);
    store_row(a, values + head * a.dim, a.values, a.value_scales, to);
  }
}

namespace portable {
#include "packed_weight/cpu/lanes_portable.hpp"
#include "models/decoder/native/gate.hpp"
#include "models/decoder/native/split_attention.hpp"
}  // namespace portable

#if defined(__x86_64__)
TERCET_TARGET("avx512f,avx2,fma,f16c")
namespace avx512 {
#include "packed_weight/cpu/lanes_avx512.hpp"
#include "models/decoder/native/gate.hpp"
#include "models/decoder/native/split_attention.hpp"
}  // namespace avx512
TERCET_TARGET_END
TERCET_TARGET("avx2,fma,f16c")
namespace avx2 {
#include "packed_weight/cpu/lanes_avx2.hpp"
#include "models/decoder/native/gate.hpp"
#include "models/decoder/native/split_attention.hpp"
}  // namespace avx2
TERCET_TARGET_END
#elif defined(__aarch64__)
namespace neon {
#include "packed_weight/cpu/lanes_neon.hpp"
#include "models/decoder/native/gate.hpp"
#include "models/decoder/native/split_attention.hpp"
}  // namespace neon
#endif

void attend_split(const Attention& a, int64_t item) {
#if defined(__x86_64__)
  if (a.isa >= tercet::kAvx512) return avx512::attend_split(a, item);
  if (a.isa == tercet::kAvx2) return avx2::attend_split(a, item);
#elif defined(__aarch64__)
  if (a.isa >= tercet::kNeon) return neon::attend_split(a, item);
#endif
  portable::attend_split(a, item);
}

void gate_row(const float* gate, const float* up, int32_t kind, int64_t count, float* y, int32_t isa) {
#if defined(__x86_64__)
  if (isa >= tercet::kAvx512) return avx512::gate_row(gate, up, kind, count, y);
  if (isa == tercet::kAvx2) return avx2::gate_row(gate, up, kind, count, y);
#elif defined(__aarch64__)
  if (isa >= tercet::kNeon) return neon::gate_row(gate, up, kind, count, y);
#endif
  portable::gate_row(gate, up, kind, count, y);
}

// out [heads, dim] of one sequence from the slices of its queries
TERCET_CLONES void merge_splits(const Attention& a, int64_t batch) {
  const int64_t splits = a.splits();
  for (int64_t h = batch * a.heads; h < (batch + 1) * a.heads; ++h) {
    const float* slices = a.slices + h * splits * a.slice_size();
    float highest = -INFINITY, total = 0, *out = a.out + h * a.dim;
    for (int64_t s = 0; s < splits; ++s)
      highest = std::fmax(highest, slices[s * a.slice_size() + a.dim + 1]);
    std::memset(out, 0, a.dim * sizeof(float));
    for (int64_t s = 0; s < splits; ++s) {
      const float* slice = slices + s * a.slice_size();
      const float factor = std::exp(slice[a.dim + 1] - highest);
      total += factor * slice[a.dim];
      for (int64_t i = 0; i < a.dim; ++i) out[i] += factor * slice[i];
    }
    for (int64_t i = 0; i < a.dim; ++i) out[i] /= total;
  }
}

// Rows [begin, end) of what the functions of the same names do.
TERCET_CLONES void add_rows(float* hidden, const float* update, const float* norm, float epsilon,
                            float factor, int64_t begin, int64_t end, int64_t count) {
  thread_local std::vector<float> held;
  held.resize(count);
  float* made = held.data();
  for (int64_t row = begin; row < end; ++row) {
    const float* added = update + row * count;
    float* to = hidden + row * count;
    if (norm) normalize(added, norm, epsilon, count, made);
    if (norm) added = made;
    for (int64_t i = 0; i < count; ++i) to[i] += factor * added[i];
  }
}

TERCET_CLONES void normalize_rows(const float* x, const float* weight, float epsilon, int64_t begin,
                                  int64_t end, int64_t count, float* y) {
  for (int64_t row = begin; row < end; ++row)
    normalize(x + row * count, weight, epsilon, count, y + row * count);
}

// task(begin, end) for all rows of `count` numbers, by threads where there are enough of them
template <class Task>
void over_rows(int64_t rows, int64_t count, int32_t threads, const Task& task) {
  struct Job {
    const Task& task;
    int64_t rows;
  } job{task, rows};
  const int64_t items = (rows + kRowsOfItem - 1) / kRowsOfItem;
  tercet::pool().run(
      items, rows * count >= kWorthThreads ? threads : 1,
      [](void* to, long item) {
        const Job& job = *static_cast<const Job*>(to);
        const int64_t begin = item * kRowsOfItem, end = begin + kRowsOfItem;
        job.task(begin, end < job.rows ? end : job.rows);
      },
      &job);
}

void prepare(Attention& a, int64_t batch, int32_t threads) {
  const int64_t tokens = batch * a.count;
  tercet::pool().run(
      tokens, tokens * a.token() >= kWorthThreads ? threads : 1,
      [](void* to, long item) { prepare_token(*static_cast<Attention*>(to), item); }, &a);
}

}  // namespace

extern "C" {

// hidden [rows, count] += factor * update, or factor * RMSNorm(update) where there is a norm.
void tercet_add(float* hidden, const float* update, const float* norm, float epsilon, float factor,
                int64_t rows, int64_t count, int32_t threads) {
  over_rows(rows, count, threads, [&](int64_t begin, int64_t end) {
    add_rows(hidden, update, norm, epsilon, factor, begin, end, count);
  });
}

// y = RMSNorm(x); [rows, count].
void tercet_normalize(const float* x, const float* weight, float epsilon, int64_t rows, int64_t count,
                      float* y, int32_t threads) {
  over_rows(rows, count, threads, [&](int64_t begin, int64_t end) {
    normalize_rows(x, weight, epsilon, begin, end, count, y);
  });
}

// y [rows, count] = act(gate) * up, gate_up [rows, 2 count].
void tercet_gate(const float* gate_up, int32_t kind, int64_t rows, int64_t count, float* y,
                 int32_t threads, int32_t isa) {
  over_rows(rows, count, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = gate_up + 2 * row * count;
      gate_row(gate, gate + count, kind, count, y + row * count, isa);
    }
  });
}

// Rotates queries and keys of qkv [batch, count, heads + 2 key_value_heads, dim] in place, and stores
// keys and values at the last `count` of `length` positions. Keys and values are as Attention has them;
// strides of scales are theirs over a row's elements, times what a row has of them. Norms are of each head [dim], or with
// norm_across_heads of all heads of a token together.
void tercet_store(float* qkv, int64_t batch, int64_t count, int64_t heads, int64_t key_value_heads,
                  int64_t dim, const float* cos, const float* sin, const float* query_norm,
                  const float* key_norm, int32_t norm_across_heads, float epsilon, void* keys,
                  void* values, void* key_scales, void* value_scales, const float* key_offset,
                  int64_t bits, int64_t batch_stride, int64_t head_stride, int64_t length,
                  int32_t threads) {
  Attention a{heads, key_value_heads, dim, batch_stride, head_stride, 0, length, count, 1, 0,
              epsilon, qkv, nullptr, keys, values, key_scales, value_scales, key_offset, bits, cos,
              sin, query_norm, key_norm, norm_across_heads, 0, nullptr};
  prepare(a, batch, threads);
}

// As tercet_store with one new position, which attends over [first, length): out [batch, heads * dim].
void tercet_attend(float* qkv, int64_t batch, int64_t heads, int64_t key_value_heads, int64_t dim,
                   const float* cos, const float* sin, const float* query_norm,
                   const float* key_norm, int32_t norm_across_heads, float epsilon, float scale, float cap,
                   void* keys, void* values, void* key_scales, void* value_scales,
                   const float* key_offset, int64_t bits, int64_t batch_stride, int64_t head_stride,
                   int64_t first, int64_t length, float* out, int32_t threads, int32_t isa) {
  Attention a{heads, key_value_heads, dim, batch_stride, head_stride, first, length, 1, scale, cap,
              epsilon, qkv, out, keys, values, key_scales, value_scales, key_offset, bits, cos, sin,
              query_norm, key_norm, norm_across_heads, isa, nullptr};
  prepare(a, batch, threads);
  thread_local std::vector<float> held;
  held.resize(batch * heads * a.splits() * a.slice_size());
  a.slices = held.data();
  const auto run = [&](auto task, int64_t items, int64_t work) {
    tercet::pool().run(items, work >= kWorthThreads ? threads : 1, task, &a);
  };
  run([](void* to, long item) { attend_split(*static_cast<Attention*>(to), item); },
      batch * key_value_heads * a.splits(), 2 * batch * heads * dim * (length - first));
  run([](void* to, long item) { merge_splits(*static_cast<Attention*>(to), item); }, batch,
      batch * heads * a.splits() * a.slice_size());
}

// Mirrors tercet.models.decoder.native_layer.LayerWeights, field by field.
struct LayerWeights {
  tercet::BoundProduct qkv, output, gate_up, down;
  // [hidden], or null
  const float *attention_norm, *attention_output_norm, *mlp_norm, *mlp_output_norm;
  const float *query_norm, *key_norm;  // as tercet_attend takes them
  int64_t hidden, intermediate, heads, key_value_heads, dim;
  int64_t window;  // positions that a query sees; 0 for all
  int32_t norm_across_heads, gate;
  float epsilon, scale, cap, factor;
};

// A whole layer, added to hidden [batch, hidden] in place; the rest as tercet_attend takes it.
void tercet_layer(const LayerWeights* layer, float* hidden, int64_t batch, const float* cos,
                  const float* sin, void* keys, void* values, void* key_scales, void* value_scales,
                  const float* key_offset, int64_t bits, int64_t batch_stride, int64_t head_stride,
                  int64_t length, int32_t threads) {
  const LayerWeights& l = *layer;
  const int64_t inner = l.heads * l.dim, wide = (l.heads + 2 * l.key_value_heads) * l.dim;
  thread_local std::vector<float> held;
  held.resize(batch * (2 * l.hidden + wide + inner + 3 * l.intermediate));
  float *x = held.data(), *update = x + batch * l.hidden, *qkv = update + batch * l.hidden;
  float *mixed = qkv + batch * wide, *gate_up = mixed + batch * inner;
  float* gated = gate_up + 2 * batch * l.intermediate;
  const auto normed = [&](const float* norm) -> const float* {
    if (!norm) return hidden;
    tercet_normalize(hidden, norm, l.epsilon, batch, l.hidden, x, threads);
    return x;
  };
  l.qkv(normed(l.attention_norm), qkv, batch, threads);
  const int64_t first = l.window && length > l.window ? length - l.window : 0;
  tercet_attend(qkv, batch, l.heads, l.key_value_heads, l.dim, cos, sin, l.query_norm, l.key_norm,
                l.norm_across_heads, l.epsilon, l.scale, l.cap, keys, values, key_scales, value_scales,
                key_offset, bits, batch_stride, head_stride, first, length, mixed, threads, l.qkv.isa);
  l.output(mixed, update, batch, threads);
  tercet_add(hidden, update, l.attention_output_norm, l.epsilon, l.factor, batch, l.hidden,
             threads);
  l.gate_up(normed(l.mlp_norm), gate_up, batch, threads);
  tercet_gate(gate_up, l.gate, batch, l.intermediate, gated, threads, l.qkv.isa);
  l.down(gated, update, batch, threads);
  tercet_add(hidden, update, l.mlp_output_norm, l.epsilon, l.factor, batch, l.hidden,
             threads);
}

// `count` layers, one after the other. cos and sin are of each kind of rotation, rotations the kind
// of each layer; a layer's keys and values begin layer_stride elements behind those of the one before.
// key_offsets: of each layer, or null.
void tercet_layers(const LayerWeights* const* layers, const int32_t* rotations, int64_t count,
                   float* hidden, int64_t batch, const float* const* cos, const float* const* sin,
                   char* keys, char* values, char* key_scales, char* value_scales,
                   const float* const* key_offsets, int64_t bits, int64_t layer_stride,
                   int64_t batch_stride, int64_t head_stride, int64_t length, int32_t threads) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t dim = layers[i]->dim, size = bits == 32 ? sizeof(float) : 1;
    // of the scales of a row
    const int64_t wide = bits == 4 ? groups_of_row(dim) * 2 * sizeof(uint16_t) : sizeof(float);
    const int64_t at = i * layer_stride, scale_at = at / (bits == 4 ? dim / 2 : dim) * wide;
    tercet_layer(layers[i], hidden, batch, cos[rotations[i]], sin[rotations[i]], keys + at * size,
                 values + at * size, key_scales ? key_scales + scale_at : nullptr,
                 value_scales ? value_scales + scale_at : nullptr,
                 key_offsets ? key_offsets[i] : nullptr, bits, batch_stride, head_stride, length, threads);
  }
}

}  // extern "C"

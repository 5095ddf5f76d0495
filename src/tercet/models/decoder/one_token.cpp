// What a decoder does between its linear layers when there is one new position a sequence.
//
// In torch these are some twenty operations a layer, each of which costs more to start than to run.
// Everything is float32; sums run in sixteen chains, so that they become vector instructions.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "packed_weight/cpu/bound_product.hpp"
#include "packed_weight/cpu/threads.hpp"

#define TERCET_INLINE static inline __attribute__((always_inline))
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

// e^x to 2 units in the last place for x <= 88 (Cephes, expf); 0 below -87.
TERCET_INLINE float exponential(float x) {
  const float clipped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float turns = clipped * 1.44269504088896341f;
  const int32_t power = static_cast<int32_t>(turns + (turns < 0 ? -0.5f : 0.5f));
  const float n = static_cast<float>(power);
  const float r = clipped - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (power + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < -87.0f ? 0.0f : p * scale;
}

TERCET_INLINE void normalize(const float* x, const float* weight, float epsilon, int64_t count,
                             float* y) {
  const float inverse = 1.0f / std::sqrt(dot(x, x, count) / count + epsilon);
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * inverse * weight[i];
}

struct Attention {
  int64_t heads, key_value_heads, dim;
  int64_t batch_stride, head_stride;  // of keys and values, in floats
  int64_t first, length;              // positions that are seen: [first, length)
  float scale, cap, epsilon;          // cap 0 for none
  float *qkv, *keys, *values, *out;  // keys and values at position 0 of batch 0, head 0
  const float *cos, *sin;            // [dim], the first half of sin negated
  const float *query_norm, *key_norm;  // [dim], or null
};

enum Gate : int32_t { kSilu, kGeluTanh };

TERCET_INLINE void norm_and_rotate(float* head, const float* norm, const Attention& a, float* spare) {
  if (norm) normalize(head, norm, a.epsilon, a.dim, head);
  const int64_t half = a.dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    spare[i] = head[i] * a.cos[i] + head[i + half] * a.sin[i];
    spare[i + half] = head[i + half] * a.cos[i + half] + head[i] * a.sin[i + half];
  }
  std::memcpy(head, spare, a.dim * sizeof(float));
}

// Writes the new key and value of one key head and attends with the query heads that share it.
TERCET_CLONES void attend_head(const Attention& a, int64_t item) {
  const int64_t batch = item / a.key_value_heads, head = item % a.key_value_heads;
  const int64_t group = a.heads / a.key_value_heads, seen = a.length - a.first;
  float* token = a.qkv + batch * (a.heads + 2 * a.key_value_heads) * a.dim;
  float* keys = a.keys + batch * a.batch_stride + head * a.head_stride;
  float* values = a.values + batch * a.batch_stride + head * a.head_stride;
  thread_local std::vector<float> held;
  held.resize(seen + a.dim);
  float *weights = held.data(), *spare = held.data() + seen;

  float* key = token + (a.heads + head) * a.dim;
  norm_and_rotate(key, a.key_norm, a, spare);
  std::memcpy(keys + (a.length - 1) * a.dim, key, a.dim * sizeof(float));
  std::memcpy(values + (a.length - 1) * a.dim,
              token + (a.heads + a.key_value_heads + head) * a.dim, a.dim * sizeof(float));

  for (int64_t h = head * group; h < (head + 1) * group; ++h) {
    float *query = token + h * a.dim, *out = a.out + (batch * a.heads + h) * a.dim;
    norm_and_rotate(query, a.query_norm, a, spare);
    float highest = -INFINITY;
    for (int64_t p = 0; p < seen; ++p) {
      weights[p] = dot(query, keys + (a.first + p) * a.dim, a.dim) * a.scale;
      if (a.cap > 0) weights[p] = a.cap * std::tanh(weights[p] / a.cap);
      highest = weights[p] > highest ? weights[p] : highest;
    }
    float total = 0;
    for (int64_t p = 0; p < seen; ++p) weights[p] = exponential(weights[p] - highest);
    for (int64_t p = 0; p < seen; ++p) total += weights[p];
    std::memset(out, 0, a.dim * sizeof(float));
    for (int64_t p = 0; p < seen; ++p) {
      const float weight = weights[p] / total;
      const float* value = values + (a.first + p) * a.dim;
      for (int64_t i = 0; i < a.dim; ++i) out[i] += weight * value[i];
    }
  }
}

}  // namespace

extern "C" {

// hidden [rows, count] += factor * update, or factor * RMSNorm(update) where there is a norm.
TERCET_CLONES void tercet_add(float* hidden, const float* update, const float* norm, float epsilon,
                              float factor, int64_t rows, int64_t count) {
  thread_local std::vector<float> held;
  held.resize(count);
  float* made = held.data();
  for (int64_t row = 0; row < rows; ++row, hidden += count, update += count) {
    if (norm) normalize(update, norm, epsilon, count, made);
    const float* added = norm ? made : update;
    for (int64_t i = 0; i < count; ++i) hidden[i] += factor * added[i];
  }
}

// y = RMSNorm(x); [rows, count].
TERCET_CLONES void tercet_normalize(const float* x, const float* weight, float epsilon,
                                    int64_t rows, int64_t count, float* y) {
  for (int64_t row = 0; row < rows; ++row, x += count, y += count)
    normalize(x, weight, epsilon, count, y);
}

// y [rows, count] = act(gate) * up, gate_up [rows, 2 count].
TERCET_CLONES void tercet_gate(const float* gate_up, int32_t kind, int64_t rows, int64_t count,
                               float* y) {
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * count, y += count) {
    const float* up = gate_up + count;
    if (kind == kSilu) {
      for (int64_t i = 0; i < count; ++i)
        y[i] = gate_up[i] / (1.0f + exponential(-gate_up[i])) * up[i];
      continue;
    }
    // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u)
    for (int64_t i = 0; i < count; ++i) {
      const float g = gate_up[i];
      const float twice = 1.5957691216057308f * (g + 0.044715f * g * g * g);
      y[i] = g / (1.0f + exponential(-twice)) * up[i];
    }
  }
}

// Rotates queries and keys of qkv [batch, heads + 2 key_value_heads, dim] in place, stores keys and
// values at position length - 1, and attends over [first, length): out [batch, heads * dim].
// Norms are of each head [dim], or with norm_across_heads of all heads of a token together.
void tercet_attend(float* qkv, int64_t batch, int64_t heads, int64_t key_value_heads, int64_t dim,
                   const float* cos, const float* sin, const float* query_norm,
                   const float* key_norm, int32_t norm_across_heads, float epsilon, float scale, float cap,
                   float* keys, float* values, int64_t batch_stride, int64_t head_stride,
                   int64_t first, int64_t length, float* out, int32_t threads) {
  if (norm_across_heads) {
    const int64_t queries = heads * dim, pairs = key_value_heads * dim;
    for (int64_t b = 0; b < batch; ++b) {
      float* token = qkv + b * (queries + 2 * pairs);
      tercet_normalize(token, query_norm, epsilon, 1, queries, token);
      tercet_normalize(token + queries, key_norm, epsilon, 1, pairs, token + queries);
    }
    query_norm = key_norm = nullptr;
  }
  Attention a{heads, key_value_heads, dim, batch_stride, head_stride, first, length, scale, cap,
              epsilon, qkv, keys, values, out, cos, sin, query_norm, key_norm};
  const bool worth = 2 * batch * heads * dim * (length - first) >= kWorthThreads;
  tercet::pool().run(
      batch * key_value_heads, worth ? threads : 1,
      [](void* context, long item) { attend_head(*static_cast<Attention*>(context), item); }, &a);
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
                  const float* sin, float* keys, float* values, int64_t batch_stride,
                  int64_t head_stride, int64_t length, int32_t threads) {
  const LayerWeights& l = *layer;
  const int64_t inner = l.heads * l.dim, wide = (l.heads + 2 * l.key_value_heads) * l.dim;
  thread_local std::vector<float> held;
  held.resize(batch * (2 * l.hidden + wide + inner + 3 * l.intermediate));
  float *x = held.data(), *update = x + batch * l.hidden, *qkv = update + batch * l.hidden;
  float *mixed = qkv + batch * wide, *gate_up = mixed + batch * inner;
  float* gated = gate_up + 2 * batch * l.intermediate;
  const auto normed = [&](const float* norm) -> const float* {
    if (!norm) return hidden;
    tercet_normalize(hidden, norm, l.epsilon, batch, l.hidden, x);
    return x;
  };
  l.qkv(normed(l.attention_norm), qkv, batch, threads);
  const int64_t first = l.window && length > l.window ? length - l.window : 0;
  tercet_attend(qkv, batch, l.heads, l.key_value_heads, l.dim, cos, sin, l.query_norm, l.key_norm,
                l.norm_across_heads, l.epsilon, l.scale, l.cap, keys, values, batch_stride, head_stride,
                first, length, mixed, threads);
  l.output(mixed, update, batch, threads);
  tercet_add(hidden, update, l.attention_output_norm, l.epsilon, l.factor, batch, l.hidden);
  l.gate_up(normed(l.mlp_norm), gate_up, batch, threads);
  tercet_gate(gate_up, l.gate, batch, l.intermediate, gated);
  l.down(gated, update, batch, threads);
  tercet_add(hidden, update, l.mlp_output_norm, l.epsilon, l.factor, batch, l.hidden);
}

}  // extern "C"

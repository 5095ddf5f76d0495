// Attention of one new position to kSplit earlier ones, for queries that share keys and values.
// Included inside a namespace, after the lanes and gate.hpp, under the target pragma.
//
// A key or value is read once for up to four queries. What is left of a head's dimensions beyond
// whole sixteens is summed one by one. Keys and values are float32, int8 with a scale a position, or rows
// in 4 bits, which become float32 before they are multiplied.

// weights [G][kSplit] = keys [begin to end, dim] times queries [G, dim], P positions at a time
template <int G, int P, class Number>
TERCET_INLINE void multiply_keys(const float* queries, const Number* keys, int64_t dim, int64_t begin,
                                 int64_t end, float* weights) {
  const int64_t even = dim / 16 * 16;
  for (int64_t p = begin; p < end; p += P) {
    F sums[G * P];
    for (int j = 0; j < G * P; ++j) sums[j] = splat(0.0f);
    for (int64_t i = 0; i < even; i += 16) {
      F key[P];
      for (int j = 0; j < P; ++j) key[j] = load(keys + (p + j) * dim + i);
      for (int g = 0; g < G; ++g) {
        const F query = load(queries + g * dim + i);
        for (int j = 0; j < P; ++j) sums[g * P + j] = fma(query, key[j], sums[g * P + j]);
      }
    }
    alignas(16) float found[(G * P + 3) / 4 * 4];
    for (int j = 0; j < G * P; j += 4) {
      const auto at = [&](int k) { return sums[j + k < G * P ? j + k : j]; };
      sum_lanes(at(0), at(1), at(2), at(3), found + j);
    }
    for (int j = 0; j < G * P; ++j) {
      const float* query = queries + j / P * dim;
      const Number* key = keys + (p + j % P) * dim;
      for (int64_t i = even; i < dim; ++i) found[j] += query[i] * key[i];
      weights[j / P * kSplit + p + j % P] = found[j];
    }
  }
}

// slices [G][stride] = weights [G][kSplit] times values [count, dim], from column `begin` on as long
// as B times sixteen are left; the first column that is left
template <int G, int B, class Number>
TERCET_INLINE int64_t multiply_values(const float* weights, const Number* values, int64_t dim,
                                      int64_t begin, int64_t count, float* slices, int64_t stride) {
  int64_t i = begin;
  for (; i + 16 * B <= dim; i += 16 * B) {
    F sums[G][B];
    for (int g = 0; g < G; ++g)
      for (int j = 0; j < B; ++j) sums[g][j] = splat(0.0f);
    for (int64_t p = 0; p < count; ++p) {
      F value[B];
      for (int j = 0; j < B; ++j) value[j] = load(values + p * dim + i + 16 * j);
      for (int g = 0; g < G; ++g) {
        const F weight = splat(weights[g * kSplit + p]);
        for (int j = 0; j < B; ++j) sums[g][j] = fma(weight, value[j], sums[g][j]);
      }
    }
    for (int g = 0; g < G; ++g)
      for (int j = 0; j < B; ++j) store(slices + g * stride + i + 16 * j, sums[g][j]);
  }
  return i;
}

TERCET_INLINE void scale_each(float* x, const float* scales, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= scales[i];
}

// scores [count] to e^(score - highest); their sum and the highest. Behind them [count to kSplit] are
// others that are overwritten.
TERCET_INLINE void weigh(const Attention& a, float* scores, int64_t count, float* sum_and_highest) {
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t p = 0; p < count; ++p) scores[p] *= a.scale;
  if (a.cap > 0)
    for (int64_t p = 0; p < count; ++p) scores[p] = a.cap * std::tanh(scores[p] / a.cap);
  for (int64_t p = count; p < padded; ++p) scores[p] = -INFINITY;
  float most[kLanes];
  std::memcpy(most, scores, sizeof most);
  for (int64_t p = kLanes; p < padded; p += kLanes)
    for (int64_t j = 0; j < kLanes; ++j)
      most[j] = scores[p + j] > most[j] ? scores[p + j] : most[j];
  float highest = most[0];
  for (int64_t j = 1; j < kLanes; ++j) highest = most[j] > highest ? most[j] : highest;
  F total = splat(0.0f);
  for (int64_t p = 0; p < padded; p += kLanes) {
    const F share = exponential(add(load(scores + p), splat(-highest)));
    store(scores + p, share);
    total = add(total, share);
  }
  sum_lanes(total, total, total, total, most);
  sum_and_highest[0] = most[0], sum_and_highest[1] = highest;
}

// G queries on `count` positions whose first key is element `at`. A query's slice: `dim` sums of
// e^(score - highest) times values, the sum of e^(score - highest), and the highest score.
template <int G, int P, int B, class Number>
void attend_queries(const Attention& a, const float* queries, int64_t at, int64_t count, float* slices,
                    int64_t stride) {
  const Number *keys = static_cast<const Number*>(a.keys) + at;
  const Number *values = static_cast<const Number*>(a.values) + at;
  float weights[G * kSplit];
  const int64_t even = count / P * P;
  multiply_keys<G, P>(queries, keys, a.dim, 0, even, weights);
  if constexpr (P > 1) multiply_keys<G, 1>(queries, keys, a.dim, even, count, weights);
  for (int g = 0; g < G; ++g) {
    float* row = weights + g * kSplit;
    constexpr bool SCALED = sizeof(Number) == 1;
    if constexpr (SCALED) scale_each(row, static_cast<const float*>(a.key_scales) + at / a.dim, count);
    weigh(a, row, count, slices + g * stride + a.dim);
    if constexpr (SCALED) scale_each(row, static_cast<const float*>(a.value_scales) + at / a.dim, count);
  }
  int64_t i = multiply_values<G, B>(weights, values, a.dim, 0, count, slices, stride);
  if constexpr (B > 1) i = multiply_values<G, 1>(weights, values, a.dim, i, count, slices, stride);
  for (; i < a.dim; ++i)
    for (int g = 0; g < G; ++g) {
      float sum = 0;
      for (int64_t p = 0; p < count; ++p) sum += weights[g * kSplit + p] * values[p * a.dim + i];
      slices[g * stride + i] = sum;
    }
}

// The queries that share one key head, on `count` positions whose first key is element `at`.
template <class Number>
void attend_group(const Attention& a, const float* queries, int64_t at, int64_t count, float* slices,
                  int64_t stride) {
  for (int64_t left = a.group(), now; left > 0; left -= now) {
    now = left % 4 == 0 || left > 6 ? 4 : (left < 3 ? left : 3);
    if (now == 1) attend_queries<1, 4, 4, Number>(a, queries, at, count, slices, stride);
    if (now == 2) attend_queries<2, 2, 2, Number>(a, queries, at, count, slices, stride);
    if (now == 3) attend_queries<3, 2, 1, Number>(a, queries, at, count, slices, stride);
    if (now == 4) attend_queries<4, 1, 1, Number>(a, queries, at, count, slices, stride);
    queries += now * a.dim, slices += now * stride;
  }
}

// numbers [count, dim] of rows in 4 bits, the first of which is row `number`
inline void decode_int4_rows(const void* rows, const void* scales, int64_t number, int64_t count,
                             int64_t dim, float* numbers) {
  const int64_t half = dim / 2;
  const uint8_t* codes = static_cast<const uint8_t*>(rows) + number * half;
  const uint16_t* pairs = static_cast<const uint16_t*>(scales) + number * 2 * groups_of_row(dim);
  constexpr uint64_t LOW = 0x0F0F0F0F0F0F0F0F;
  for (int64_t row = 0; row < count; ++row, codes += half, numbers += dim)
    for (int64_t i = 0; i < half; i += kHalfGroup, pairs += 2) {
      const F step = splat(tercet::bfloat_to_float(pairs[0])), least = splat(tercet::bfloat_to_float(pairs[1]));
      const int64_t width = half - i < kHalfGroup ? half - i : kHalfGroup;
      uint64_t both[2] = {}, low[2], high[2];
      std::memcpy(both, codes + i, width);
      for (int j = 0; j < 2; ++j) low[j] = both[j] & LOW, high[j] = both[j] >> 4 & LOW;
      const F first = fma(load(reinterpret_cast<const int8_t*>(low)), step, least);
      const F second = fma(load(reinterpret_cast<const int8_t*>(high)), step, least);
      if (width == kHalfGroup) {
        store(numbers + i, first);
        store(numbers + half + i, second);
        continue;
      }
      float ends[kHalfGroup];
      store(ends, first);
      std::memcpy(numbers + i, ends, width * sizeof(float));
      store(ends, second);
      std::memcpy(numbers + half + i, ends, width * sizeof(float));
    }
}

// attend_group of rows in 4 bits
inline void attend_decoded(const Attention& a, const float* queries, int64_t at, int64_t count,
                           float* slices, int64_t stride) {
  thread_local std::vector<float> held;
  held.resize(2 * kSplit * a.dim);
  float *keys = held.data(), *values = keys + kSplit * a.dim;
  const int64_t number = at / a.row();
  decode_int4_rows(a.keys, a.key_scales, number, count, a.dim, keys);
  decode_int4_rows(a.values, a.value_scales, number, count, a.dim, values);
  Attention decoded = a;
  decoded.keys = keys, decoded.values = values;
  attend_group<float>(decoded, queries, 0, count, slices, stride);
}

// One split of the positions of one key head.
void attend_split(const Attention& a, int64_t item) {
  const int64_t splits = a.splits(), split = item % splits, of_batch = item / splits;
  const int64_t batch = of_batch / a.key_value_heads, head = of_batch % a.key_value_heads;
  const int64_t begin = a.first + split * kSplit;
  const int64_t count = a.length - begin < kSplit ? a.length - begin : kSplit;
  const int64_t at = batch * a.batch_stride + head * a.head_stride + begin * a.row();
  const int64_t query = batch * a.heads + head * a.group(), stride = splits * a.slice_size();
  const float* queries = a.qkv + batch * a.token() + head * a.group() * a.dim;
  float* slices = a.slices + query * stride + split * a.slice_size();
  if (a.bits == 4) attend_decoded(a, queries, at, count, slices, stride);
  else if (a.bits == 8) attend_group<int8_t>(a, queries, at, count, slices, stride);
  else attend_group<float>(a, queries, at, count, slices, stride);
}

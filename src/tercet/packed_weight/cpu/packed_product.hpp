// The two inner products, written over sixteen lanes (= sixteen output rows). Included once for each
// instruction set, inside its namespace, after that set's lanes file.

constexpr int kChunkRuns = 64;  // runs summed before they are added to the row's total

template <int bits, bool is_signed>
struct Decoder {
  Table table;
  const float* levels;
  explicit Decoder(const Layout& layout)
      : table(load_table(layout.levels)), levels(layout.levels) {}

  template <int i>
  TERCET_INLINE F at(const I& codes) const {
    if constexpr (bits < 8) return lookup16<bits * i>(table, codes);
    else if constexpr (is_signed) return signed_byte<i>(codes);
    else return lookup256<i>(levels, codes);
  }
};

TERCET_INLINE F load_number(const void* from, int32_t number, int64_t index) {
  if (number == kFloat32) return load(static_cast<const float*>(from) + index);
  const uint16_t* words = static_cast<const uint16_t*>(from) + index;
  return number == kFloat16 ? load_half(words) : load_bfloat(words);
}

// part += sum over one run of level(code) * x, for one lane register
template <int i, int per_run, int chains, class Levels>
TERCET_INLINE void add_products(const Levels& decoder, const I& codes, const float* x, F* slice) {
  if constexpr (i < per_run) {
    slice[i % chains] = fma(decoder.template at<i>(codes), splat(x[i]), slice[i % chains]);
    add_products<i + 1, per_run, chains>(decoder, codes, x, slice);
  }
}

// The same for 2-bit codes: four bits of codes select level0 * x0 + level1 * x1 from a table made
// once per call, so a lookup and an addition serve two weights.
template <int i, int blocks, int chains>
TERCET_INLINE void add_pairs(const I* codes, const float* pairs, F (*slice)[chains]) {
  if constexpr (i < 8) {
    const Table table = load_table(pairs + 16 * i);
    for (int b = 0; b < blocks; ++b)
      slice[b][i % chains] = add(slice[b][i % chains], lookup16<4 * i>(table, codes[b]));
    add_pairs<i + 1, blocks, chains>(codes, pairs, slice);
  }
}

inline void make_pairs(const Layout& layout, const float* x, int64_t columns, float* pairs) {
  float first[16], second[16];
  for (int j = 0; j < 16; ++j) first[j] = layout.levels[j & 3], second[j] = layout.levels[j >> 2];
  const F even = load(first), odd = load(second);
  for (int64_t k = 0; k < columns; k += 2)
    store(pairs + 8 * k, fma(even, splat(x[k]), mul(odd, splat(x[k + 1]))));
}

// out[16 * blocks] = W x for `blocks` blocks of rows. Exact: x and levels are integers; the sums of
// kChunkRuns runs are below 2^24, so exact in float32, and are added as int32 over a group.
template <int bits, bool is_signed, int blocks, bool exact>
void multiply_vector(const Weight& w, const Vector& x, int64_t block, float* out) {
  constexpr int per_run = 32 / bits;
  // the same for any number of blocks: a row's sum must not depend on the rows beside it
  constexpr int chains = 2;
  const Layout& layout = *w.layout;
  const Decoder<bits, is_signed> decoder(layout);
  const int64_t stride = w.runs() * 16, scale_stride = layout.groups * 16;
  const uint32_t* codes = w.block_codes(block);
  F total[blocks];
  for (int b = 0; b < blocks; ++b) total[b] = splat(0.0f);
  int64_t run = 0;
  for (int64_t group = 0; group < layout.groups; ++group) {
    const int64_t at = block * scale_stride + group * 16;
    F scale[blocks];
    for (int b = 0; b < blocks; ++b)
      scale[b] = load_number(w.scale, w.scale_number, at + b * scale_stride);
    I full[blocks];
    for (int b = 0; b < blocks; ++b) full[b] = zero_int();
    const int64_t end = run + layout.runs_per_group;
    while (run < end) {
      const int64_t stop = end - run < kChunkRuns ? end : run + kChunkRuns;
      F slice[blocks][chains];
      for (int b = 0; b < blocks; ++b)
        for (int c = 0; c < chains; ++c) slice[b][c] = splat(0.0f);
      for (; run < stop; ++run) {
        I word[blocks];
        for (int b = 0; b < blocks; ++b) {
          const uint32_t* from = codes + b * stride + run * 16;
          __builtin_prefetch(from + kAhead);
          word[b] = load_codes(from);
        }
        if constexpr (bits == 2) {
          add_pairs<0, blocks, chains>(word, x.pairs + run * per_run * 8, slice);
        } else {
          for (int b = 0; b < blocks; ++b)
            add_products<0, per_run, chains>(decoder, word[b], x.values + run * per_run, slice[b]);
        }
      }
      for (int b = 0; b < blocks; ++b) {
        const F sum = add(slice[b][0], slice[b][1]);
        if constexpr (exact) full[b] = add_int(full[b], to_int(sum));
        else total[b] = fma(scale[b], sum, total[b]);
      }
    }
    if constexpr (exact) {
      for (int b = 0; b < blocks; ++b) {
        F sum = to_float(full[b]);
        if (w.zero) {
          const F zero = load_number(w.zero, w.zero_number, at + b * scale_stride);
          sum = fma(zero, splat(-x.sums[group]), sum);
        }
        total[b] = fma(scale[b], sum, total[b]);
      }
    } else if (w.zero) {
      const F minus_sum = splat(-x.sums[group]);
      for (int b = 0; b < blocks; ++b) {
        const F zero = load_number(w.zero, w.zero_number, at + b * scale_stride);
        total[b] = fma(mul(scale[b], zero), minus_sum, total[b]);
      }
    }
  }
  for (int b = 0; b < blocks; ++b) store(out + 16 * b, total[b]);
}

template <int i, int per_run, int stride, class Levels>
TERCET_INLINE void store_levels(const Levels& decoder, const I& codes, F scale, F offset, float* panel) {
  if constexpr (i < per_run) {
    store(panel + i * stride, fma(decoder.template at<i>(codes), scale, offset));
    store_levels<i + 1, per_run, stride>(decoder, codes, scale, offset, panel);
  }
}

// panel[k][kTileBlocks][16] = W (exact: its levels) for one block of rows and the runs [first, last)
template <int bits, bool is_signed, bool exact>
void decode_panel(const Weight& w, int64_t block, int64_t first, int64_t last, float* panel) {
  constexpr int per_run = 32 / bits, stride = kTileBlocks * 16;
  const Layout& layout = *w.layout;
  const Decoder<bits, is_signed> decoder(layout);
  const uint32_t* codes = w.block_codes(block);
  for (int64_t run = first; run < last;) {
    const int64_t group = run / layout.runs_per_group;
    const int64_t at = (block * layout.groups + group) * 16;
    const F scale = exact ? splat(1.0f) : load_number(w.scale, w.scale_number, at);
    F offset = splat(0.0f);
    if (w.zero && !exact) offset = mul(mul(scale, load_number(w.zero, w.zero_number, at)), splat(-1.0f));
    const int64_t end = (group + 1) * layout.runs_per_group;
    for (const int64_t stop = end < last ? end : last; run < stop; ++run) {
      store_levels<0, per_run, stride>(decoder, load_codes(codes + run * 16), scale, offset, panel);
      panel += per_run * stride;
    }
  }
}

// y[row][blocks * 16] += panel^T x for one register tile of `rows` rows; x is [depth][rows]. Exact: y
// is int32, and the sum of kDepth products below 2^24.
template <int rows, bool exact>
void multiply_tile(const float* panel, const float* x, int64_t depth, float* y) {
  F sum[rows][kTileBlocks];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
    for (int b = 0; b < kTileBlocks; ++b) sum[r][b] = splat(0.0f);
  for (int64_t k = 0; k < depth; ++k) {
    F w[kTileBlocks];
    for (int b = 0; b < kTileBlocks; ++b) w[b] = load(panel + (k * kTileBlocks + b) * 16);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const F value = splat(x[k * rows + r]);
      for (int b = 0; b < kTileBlocks; ++b) sum[r][b] = fma(w[b], value, sum[r][b]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
    for (int b = 0; b < kTileBlocks; ++b) {
      float* to = y + (r * kTileBlocks + b) * 16;
      if constexpr (exact) {
        int32_t* total = reinterpret_cast<int32_t*>(to);
        const I before = load_codes(reinterpret_cast<const uint32_t*>(total));
        store_int(total, add_int(before, to_int(sum[r][b])));
      } else {
        store(to, add(load(to), sum[r][b]));
      }
    }
}

template <bool exact>
void multiply_tile_of(int rows, const float* panel, const float* x, int64_t depth, float* y) {
  switch (rows) {
    case 12: if constexpr (kTileRows >= 12) return multiply_tile<12, exact>(panel, x, depth, y); break;
    case 8: if constexpr (kTileRows >= 8) return multiply_tile<8, exact>(panel, x, depth, y); break;
    case 6: if constexpr (kTileRows >= 6) return multiply_tile<6, exact>(panel, x, depth, y); break;
    case 4: return multiply_tile<4, exact>(panel, x, depth, y);
    case 2: return multiply_tile<2, exact>(panel, x, depth, y);
    default: return multiply_tile<1, exact>(panel, x, depth, y);
  }
}

// total[blocks * 16] += scale (sum - zero * x_sum), sum int32 of one group; then sum is 0
inline void add_group(const Weight& w, int64_t block, int64_t blocks, int64_t group, float x_sum,
                      int32_t* sum, float* total) {
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t at = ((block + b) * w.layout->groups + group) * 16;
    F value = to_float(load_codes(reinterpret_cast<const uint32_t*>(sum + 16 * b)));
    if (w.zero) value = fma(load_number(w.zero, w.zero_number, at), splat(-x_sum), value);
    store(total + 16 * b, fma(load_number(w.scale, w.scale_number, at), value, load(total + 16 * b)));
    store_int(sum + 16 * b, zero_int());
  }
}

// values[count] = values * x_scale + bias, rounded once; count is a multiple of 16
inline void scale_values(float* values, int64_t count, float x_scale, const float* bias) {
  for (int64_t i = 0; i < count; i += 16)
    store(values + i, fused(load(values + i), splat(x_scale), load(bias + i)));
}

// The vector product of 1..4 blocks. Four at once share what is read of the tables of 2-bit codes, a lookup
// each; of other codes four streams from memory cost more than what is shared.
template <int bits, bool is_signed, bool exact>
void multiply_vectors(const Weight& w, const Vector& x, int64_t block, int64_t count, float* out) {
  if constexpr (bits == 2)
    if (count == 4) return multiply_vector<bits, is_signed, 4, exact>(w, x, block, out);
  for (int64_t i = 0; i < count; ++i)
    multiply_vector<bits, is_signed, 1, exact>(w, x, block + i, out + 16 * i);
}

template <int bits, bool is_signed, bool exact>
Kernels kernels_of_codes() {
  return {kTileRows, kTileBlocks, make_pairs, multiply_vectors<bits, is_signed, exact>,
          decode_panel<bits, is_signed, exact>, multiply_tile_of<exact>, add_group, scale_values};
}

template <bool exact>
Kernels kernels_for(const Layout& layout) {
  if (layout.bits == 2) return kernels_of_codes<2, false, exact>();
  if (layout.bits == 4) return kernels_of_codes<4, false, exact>();
  return layout.is_signed ? kernels_of_codes<8, true, exact>() : kernels_of_codes<8, false, exact>();
}

// Rows of tercet/packed_weight/int4_rows.py: turned, coded and stored. Included inside a namespace.

constexpr int64_t kHalfGroup = 16;  // columns of a group in each half of a row

// of a row of `dim` columns
inline int64_t groups_of_row(int64_t dim) { return (dim / 2 + kHalfGroup - 1) / kHalfGroup; }

// `turn` of a row: sums and differences of both halves, each times the Hadamard matrix of its blocks
TERCET_INLINE void hadamard_row(float* row, int64_t dim) {
  const int64_t half = dim / 2, lowest = half & -half, size = lowest > 1 ? lowest : 1;
  for (int64_t i = 0; i < half; ++i) {
    const float low = row[i], high = row[half + i];
    row[i] = low + high, row[half + i] = low - high;
  }
  for (int64_t step = 1; step < size; step *= 2)
    for (int64_t from = 0; from < dim; from += 2 * step)
      for (int64_t i = from; i < from + step; ++i) {
        const float low = row[i], high = row[i + step];
        row[i] = low + high, row[i + step] = low - high;
      }
  const float factor = static_cast<float>(1.0 / std::sqrt(2.0 * static_cast<double>(size)));
  for (int64_t i = 0; i < dim; ++i) row[i] *= factor;
}

// the code of y in a group of that step and least
TERCET_INLINE uint8_t code_of(float y, float step, float least) {
  const float code = std::nearbyint((y / 2 - least / 2) / (step / 2));
  return static_cast<uint8_t>(code > 15.0f ? 15.0f : (code > 0.0f ? code : 0.0f));
}

// Codes [dim / 2] of a row, and step and least of its groups.
TERCET_INLINE void quantize_int4_row(const float* row, int64_t dim, uint8_t* codes, uint16_t* scales) {
  const int64_t half = dim / 2;
  for (int64_t begin = 0; begin < half; begin += kHalfGroup, scales += 2) {
    const int64_t end = begin + kHalfGroup < half ? begin + kHalfGroup : half;
    float lowest = row[begin], highest = row[begin];
    bool number = true;
    for (int64_t i = begin; i < end; ++i)
      for (const float y : {row[i], row[half + i]}) {
        lowest = y < lowest ? y : lowest, highest = y > highest ? y : highest;
        number = number && !std::isnan(y);
      }
    scales[1] = tercet::float_to_bfloat(number ? lowest : NAN);
    const float least = tercet::bfloat_to_float(scales[1]), wide = (highest / 2 - least / 2) / 7.5f;
    scales[0] = tercet::float_to_bfloat(number ? (wide < 0 ? 0.0f : wide) : NAN);
    const float step = tercet::bfloat_to_float(scales[0]);
    const bool usable = step > 0 && std::isfinite(step) && std::isfinite(least);
    for (int64_t i = begin; i < end; ++i)
      codes[i] = usable ? static_cast<uint8_t>(code_of(row[i], step, least) |
                                               code_of(row[half + i], step, least) << 4)
                        : 0;
  }
}

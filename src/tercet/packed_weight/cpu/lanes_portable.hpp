// Sixteen float lanes in plain C++, for any machine. Included inside a namespace.
struct F {
  float v[16];
};
struct I {
  uint32_t v[16];
};
using Table = const float*;

constexpr int kTileRows = 4;
constexpr int kTileBlocks = 1;

#define TERCET_LANES(expression)                   \
  F out;                                           \
  for (int j = 0; j < 16; ++j) out.v[j] = expression; \
  return out

TERCET_INLINE F load(const float* from) { TERCET_LANES(from[j]); }
TERCET_INLINE F load(const int8_t* from) { TERCET_LANES(static_cast<float>(from[j])); }
TERCET_INLINE void store(float* to, F a) {
  for (int j = 0; j < 16; ++j) to[j] = a.v[j];
}
TERCET_INLINE F splat(float a) { TERCET_LANES(a); }
TERCET_INLINE F add(F a, F b) { TERCET_LANES(a.v[j] + b.v[j]); }
TERCET_INLINE F mul(F a, F b) { TERCET_LANES(a.v[j] * b.v[j]); }
TERCET_INLINE F divide(F a, F b) { TERCET_LANES(a.v[j] / b.v[j]); }
// b where either is NaN
TERCET_INLINE F larger(F a, F b) { TERCET_LANES(a.v[j] > b.v[j] ? a.v[j] : b.v[j]); }
TERCET_INLINE F smaller(F a, F b) { TERCET_LANES(a.v[j] < b.v[j] ? a.v[j] : b.v[j]); }
TERCET_INLINE F fma(F a, F b, F c) { TERCET_LANES(a.v[j] * b.v[j] + c.v[j]); }
// the sums of the lanes of each, to to[4]
TERCET_INLINE void sum_lanes(const F& a, const F& b, const F& c, const F& d, float* to) {
  const F* all[4] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; ++i) {
    F sums = *all[i];
    for (int half = 8; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) sums.v[j] += sums.v[j + half];
    to[i] = sums.v[0];
  }
}
// one rounding, which a * b + c in plain C++ does not promise
TERCET_INLINE F fused(F a, F b, F c) { TERCET_LANES(std::fma(a.v[j], b.v[j], c.v[j])); }
TERCET_INLINE F to_float(const I& a) { TERCET_LANES(static_cast<float>(static_cast<int32_t>(a.v[j]))); }
TERCET_INLINE I to_int(F a) {
  I out;
  for (int j = 0; j < 16; ++j) out.v[j] = static_cast<uint32_t>(static_cast<int32_t>(a.v[j]));
  return out;
}
// 2^n for n in [-126, 127]
TERCET_INLINE F two_to(const I& n) { TERCET_LANES(tercet::bits_to_float((n.v[j] + 127) << 23)); }
TERCET_INLINE I add_int(const I& a, const I& b) {
  I out;
  for (int j = 0; j < 16; ++j) out.v[j] = a.v[j] + b.v[j];
  return out;
}
TERCET_INLINE I zero_int() { return I{}; }
TERCET_INLINE void store_int(int32_t* to, const I& a) {
  for (int j = 0; j < 16; ++j) to[j] = static_cast<int32_t>(a.v[j]);
}
TERCET_INLINE I load_codes(const uint32_t* from) {
  I out;
  for (int j = 0; j < 16; ++j) out.v[j] = from[j];
  return out;
}
TERCET_INLINE Table load_table(const float* levels) { return levels; }

template <int shift>
TERCET_INLINE F lookup16(Table table, const I& codes) {
  TERCET_LANES(table[codes.v[j] >> shift & 15]);
}

template <int byte>
TERCET_INLINE F signed_byte(const I& codes) {
  TERCET_LANES(static_cast<int8_t>(codes.v[j] >> 8 * byte));
}

template <int byte>
TERCET_INLINE F lookup256(const float* levels, const I& codes) {
  TERCET_LANES(levels[codes.v[j] >> 8 * byte & 255]);
}

TERCET_INLINE F load_half(const uint16_t* from) { TERCET_LANES(tercet::half_to_float(from[j])); }
TERCET_INLINE F load_bfloat(const uint16_t* from) { TERCET_LANES(tercet::bfloat_to_float(from[j])); }

#undef TERCET_LANES

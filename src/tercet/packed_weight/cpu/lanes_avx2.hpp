// Sixteen float lanes in two AVX2 registers. Included inside a namespace, under the target pragma.
struct F {
  __m256 low, high;
};
struct I {
  __m256i low, high;
};
using Table = F;

constexpr int kTileRows = 6;  // with two registers of W and one of x all sixteen
constexpr int kTileBlocks = 1;

TERCET_INLINE F load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
TERCET_INLINE F load(const int8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
TERCET_INLINE void store(float* to, F a) {
  _mm256_storeu_ps(to, a.low);
  _mm256_storeu_ps(to + 8, a.high);
}
TERCET_INLINE F splat(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
TERCET_INLINE F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
TERCET_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
TERCET_INLINE F divide(F a, F b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
// b where either is NaN
TERCET_INLINE F larger(F a, F b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
TERCET_INLINE F smaller(F a, F b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
TERCET_INLINE F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
TERCET_INLINE F fused(F a, F b, F c) { return fma(a, b, c); }
// the sums of the lanes of each, to to[4]
TERCET_INLINE void sum_lanes(F a, F b, F c, F d, float* to) {
  const __m256 first = _mm256_hadd_ps(_mm256_add_ps(a.low, a.high), _mm256_add_ps(b.low, b.high));
  const __m256 second = _mm256_hadd_ps(_mm256_add_ps(c.low, c.high), _mm256_add_ps(d.low, d.high));
  const __m256 both = _mm256_hadd_ps(first, second);
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
}
TERCET_INLINE I to_int(F a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
TERCET_INLINE F to_float(I a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
TERCET_INLINE __m256 two_to_half(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// 2^n for n in [-126, 127]
TERCET_INLINE F two_to(I n) { return {two_to_half(n.low), two_to_half(n.high)}; }
TERCET_INLINE I add_int(I a, I b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
TERCET_INLINE I zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
TERCET_INLINE void store_int(int32_t* to, I a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), a.high);
}
TERCET_INLINE I load_codes(const uint32_t* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 8))};
}
TERCET_INLINE Table load_table(const float* levels) { return load(levels); }

// vpermps reads the low three bits of an index; bit 3, moved to the sign, picks between two tables
template <int shift>
TERCET_INLINE __m256 lookup_half(Table table, __m256i codes) {
  const __m256i index = _mm256_srli_epi32(codes, shift);
  const __m256 low = _mm256_permutevar8x32_ps(table.low, index);
  const __m256 high = _mm256_permutevar8x32_ps(table.high, index);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28 - shift)));
}

template <int shift>
TERCET_INLINE F lookup16(Table table, I codes) {
  return {lookup_half<shift>(table, codes.low), lookup_half<shift>(table, codes.high)};
}

template <int byte>
TERCET_INLINE __m256 signed_half(__m256i codes) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(codes, 24 - 8 * byte), 24));
}

template <int byte>
TERCET_INLINE F signed_byte(I codes) {
  return {signed_half<byte>(codes.low), signed_half<byte>(codes.high)};
}

template <int byte>
TERCET_INLINE __m256 gather_half(const float* levels, __m256i codes) {
  const __m256i index = _mm256_and_si256(_mm256_srli_epi32(codes, 8 * byte), _mm256_set1_epi32(255));
  return _mm256_i32gather_ps(levels, index, 4);
}

template <int byte>
TERCET_INLINE F lookup256(const float* levels, I codes) {
  return {gather_half<byte>(levels, codes.low), gather_half<byte>(levels, codes.high)};
}

TERCET_INLINE F load_half(const uint16_t* from) {
  const __m128i* words = reinterpret_cast<const __m128i*>(from);
  return {_mm256_cvtph_ps(_mm_loadu_si128(words)), _mm256_cvtph_ps(_mm_loadu_si128(words + 1))};
}

TERCET_INLINE __m256 widen_bfloat(__m128i words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

TERCET_INLINE F load_bfloat(const uint16_t* from) {
  const __m128i* words = reinterpret_cast<const __m128i*>(from);
  return {widen_bfloat(_mm_loadu_si128(words)), widen_bfloat(_mm_loadu_si128(words + 1))};
}

// Sixteen float lanes in one AVX-512 register. Included inside a namespace, under the target pragma.
struct F {
  __m512 v;
};
using I = __m512i;
using Table = __m512;

constexpr int kTileRows = 12;   // rows of x in one register tile
constexpr int kTileBlocks = 2;  // blocks of 16 output rows in one register tile

TERCET_INLINE F load(const float* from) { return {_mm512_loadu_ps(from)}; }
TERCET_INLINE F load(const int8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
TERCET_INLINE void store(float* to, F a) { _mm512_storeu_ps(to, a.v); }
TERCET_INLINE F splat(float a) { return {_mm512_set1_ps(a)}; }
TERCET_INLINE F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
TERCET_INLINE F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
TERCET_INLINE F divide(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
// b where either is NaN
TERCET_INLINE F larger(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
TERCET_INLINE F smaller(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
TERCET_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TERCET_INLINE F fused(F a, F b, F c) { return fma(a, b, c); }
TERCET_INLINE __m256 sum_halves(F a) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
}
// the sums of the lanes of each, to to[4]
TERCET_INLINE void sum_lanes(F a, F b, F c, F d, float* to) {
  const __m256 both = _mm256_hadd_ps(_mm256_hadd_ps(sum_halves(a), sum_halves(b)),
                                     _mm256_hadd_ps(sum_halves(c), sum_halves(d)));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
}
TERCET_INLINE I to_int(F a) { return _mm512_cvtps_epi32(a.v); }
TERCET_INLINE F to_float(I a) { return {_mm512_cvtepi32_ps(a)}; }
// 2^n for n in [-126, 127]
TERCET_INLINE F two_to(I n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23))};
}
TERCET_INLINE I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
TERCET_INLINE I zero_int() { return _mm512_setzero_si512(); }
TERCET_INLINE void store_int(int32_t* to, I a) { _mm512_storeu_si512(to, a); }
TERCET_INLINE I load_codes(const uint32_t* from) { return _mm512_loadu_si512(from); }
TERCET_INLINE Table load_table(const float* levels) { return _mm512_loadu_ps(levels); }

// table[(codes >> shift) & 15]: vpermps reads the low four bits of each index, no mask is needed
template <int shift>
TERCET_INLINE F lookup16(Table table, I codes) {
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(codes, shift), table)};
}

template <int byte>
TERCET_INLINE F signed_byte(I codes) {
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(codes, 24 - 8 * byte), 24))};
}

template <int byte>
TERCET_INLINE F lookup256(const float* levels, I codes) {
  const I index = _mm512_and_si512(_mm512_srli_epi32(codes, 8 * byte), _mm512_set1_epi32(255));
  return {_mm512_i32gather_ps(index, levels, 4)};
}

TERCET_INLINE F load_half(const uint16_t* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}

TERCET_INLINE F load_bfloat(const uint16_t* from) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16))};
}

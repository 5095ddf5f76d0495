// Eight lanes of AVX2, for cut_segments.hpp. Included inside a namespace, under a target pragma, after
// kWideSums.
using Eight = __m256;
using EightIntegers = __m256i;

TERCET_INLINE Eight load_numbers(const float* from) { return _mm256_load_ps(from); }

TERCET_INLINE void store_numbers(float* to, Eight x) { _mm256_store_ps(to, x); }

TERCET_INLINE Eight same_number(float x) { return _mm256_set1_ps(x); }

TERCET_INLINE Eight size_of(Eight x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

TERCET_INLINE Eight largest(Eight a, Eight b) { return _mm256_max_ps(a, b); }

TERCET_INLINE Eight sum_of(Eight a, Eight b) { return _mm256_add_ps(a, b); }

TERCET_INLINE float largest_of(Eight x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

TERCET_INLINE float sum_of(Eight x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// All bits of a lane where it holds, none elsewhere.
TERCET_INLINE Eight at_least(Eight a, Eight b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }

TERCET_INLINE Eight above(Eight a, Eight b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }

TERCET_INLINE Eight not_at_most(Eight a, Eight b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }

TERCET_INLINE Eight either(Eight a, Eight b) { return _mm256_or_ps(a, b); }

TERCET_INLINE bool anywhere(Eight mask) { return _mm256_movemask_ps(mask); }

// x where it holds, 0 elsewhere; and the other way round
TERCET_INLINE Eight where(Eight mask, Eight x) { return _mm256_and_ps(mask, x); }

TERCET_INLINE Eight where_not(Eight mask, Eight x) { return _mm256_andnot_ps(mask, x); }

// x * factor, rounded
TERCET_INLINE EightIntegers to_steps(Eight x, Eight factor) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(x, factor));
}

// Byte B of field f of a dword of codes holds column fields * B + f: digits are put into that order.
template <int bits>
TERCET_INLINE __m256i in_order_of_codes(__m256i bytes) {
  if constexpr (bits == 8) return bytes;
  const __m128i order = bits == 2
      ? _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
      : _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  return _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order));
}

// The lowest digits of integers [32], in the order of codes; the integers become what is left of them.
template <int bits>
TERCET_INLINE void take_digits(EightIntegers* integers, char* to) {
  __m256i low[4];
  for (int i = 0; i < 4; ++i) {
    low[i] = _mm256_srai_epi32(_mm256_slli_epi32(integers[i], 24), 24);
    integers[i] = _mm256_srai_epi32(_mm256_sub_epi32(integers[i], low[i]), 8);
  }
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(low[0], low[1]),
                                            _mm256_packs_epi32(low[2], low[3]));
  const __m256i placed = in_order_of_codes<bits>(_mm256_permutevar8x32_epi32(packed, order));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), placed);
}

// What sums of codes times digits [64] begin with to be sums of levels: Segment::lowest.
TERCET_INLINE uint32_t start_of_sums(const char* digits, int32_t lowest) {
  __m256i sum = _mm256_setzero_si256();
  for (int half = 0; half < 2; ++half) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(digits + 32 * half));
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), some));
  }
  const __m128i four = _mm_add_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  const __m128i two = _mm_add_epi16(four, _mm_unpackhi_epi64(four, four));
  const __m128i one = _mm_add_epi16(two, _mm_srli_epi64(two, 32));
  const __m128i level = _mm_set1_epi16(static_cast<int16_t>(lowest));
  const __m128i start = kWideSums ? _mm_madd_epi16(one, level) : _mm_mullo_epi16(one, level);
  return static_cast<uint32_t>(_mm_cvtsi128_si32(start));
}

// The product of one row of x on AVX2's int8 multipliers: codes as they are, x in the digits of
// segments.hpp. Included inside a namespace, after packed_product.hpp, under the target pragma.
//
// A level is a code plus the lowest level, so a sum of levels begins at the lowest level times the
// sum of the digits: all are integers, nothing cancels. Four columns of eight rows are one
// register, so a lane's sum is one output row's, and no sum runs across lanes.

constexpr bool kWideSums = false;
#include "eight_avx2.hpp"
#include "cut_segments.hpp"

TERCET_INLINE __m256i load_eight(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

TERCET_INLINE __m256i splat_word(uint32_t word) {
  return _mm256_set1_epi32(static_cast<int32_t>(word));
}

TERCET_INLINE __m256i splat_byte(int32_t byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }

// Field f of codes; codes of 8 bits are levels, which are counted from the lowest here.
template <int bits>
TERCET_INLINE __m256i field(__m256i codes, int f, __m256i lowest) {
  if constexpr (bits == 8) return _mm256_sub_epi8(codes, lowest);
  const __m256i mask = _mm256_set1_epi8(bits == 2 ? 3 : 15);
  return _mm256_and_si256(f ? _mm256_srli_epi16(codes, bits * f) : codes, mask);
}

// digit0 + 256 digit1 + 65536 digit2, which fits 32 bits
template <int digits>
TERCET_INLINE __m256i combine_digits(const __m256i (&sums)[digits]) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i combined = _mm256_madd_epi16(sums[0], ones);
  if constexpr (digits > 1)
    combined = _mm256_add_epi32(combined, _mm256_madd_epi16(sums[1], _mm256_set1_epi16(256)));
  if constexpr (digits > 2)
    combined = _mm256_add_epi32(combined, _mm256_slli_epi32(_mm256_madd_epi16(sums[2], ones), 16));
  return combined;
}

// Sums of levels times x in steps, of one segment.
template <int bits, int digits>
TERCET_INLINE I sum_segment(const uint32_t* codes, const Segment& s, const uint32_t* words,
                            __m256i lowest) {
  constexpr int fields = 8 / bits;
  __m256i sums[2][digits];  // [rows 0..7 and 8..15], pairs of 16 bits
  const int64_t stride = s.runs * fields;
  for (int d = 0; d < digits; ++d) sums[0][d] = sums[1][d] = splat_word(s.lowest[d]);
  for (int64_t run = 0; run < s.runs; ++run, codes += 16, words += fields) {
    __builtin_prefetch(codes + kAhead);
    const __m256i first = load_eight(codes), second = load_eight(codes + 8);
#pragma GCC unroll 4
    for (int f = 0; f < fields; ++f) {
      const __m256i a = field<bits>(first, f, lowest), b = field<bits>(second, f, lowest);
#pragma GCC unroll 4
      for (int d = 0; d < digits; ++d) {
        const __m256i x = splat_word(words[d * stride + f]);
        sums[0][d] = _mm256_add_epi16(sums[0][d], _mm256_maddubs_epi16(a, x));
        sums[1][d] = _mm256_add_epi16(sums[1][d], _mm256_maddubs_epi16(b, x));
      }
    }
  }
  return {combine_digits<digits>(sums[0]), combine_digits<digits>(sums[1])};
}

#include "add_integers.hpp"

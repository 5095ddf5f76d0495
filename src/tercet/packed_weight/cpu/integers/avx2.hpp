// The product of one row of x on AVX2's int8 multipliers: codes as they are, x in the digits of
// segments.hpp. Included inside a namespace, after packed_product.hpp, under the target pragma.
//
// A level is a code plus the lowest level, so a sum of levels begins at the lowest level times the
// sum of the digits: all are integers, nothing cancels. Four columns of eight rows are one
// register, so a lane's sum is one output row's, and no sum runs across lanes.

constexpr bool kWideSums = false;
#include "cut_segments.hpp"

TERCET_INLINE __m256i load_eight(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

TERCET_INLINE __m256i splat_word(uint32_t word) {
  return _mm256_set1_epi32(static_cast<int32_t>(word));
}

// Field f of codes; codes of 8 bits are levels, which are counted from the lowest here.
template <int bits>
TERCET_INLINE __m256i field(__m256i codes, int f, __m256i lowest) {
  if constexpr (bits == 8) return _mm256_sub_epi8(codes, lowest);
  const __m256i mask = _mm256_set1_epi8(bits == 2 ? 3 : 15);
  return _mm256_and_si256(f ? _mm256_srli_epi16(codes, bits * f) : codes, mask);
}

// Codes are asked for a page before they are used, in dwords: the processor's own guesses end at each
// page. On one core of an AMD EPYC a product of int4 [3072, 576] takes 0.83 of the time, one of int5
// [49152, 576] 0.78; on two cores, which memory feeds together, 0.97 and 0.78.
constexpr int64_t kAhead = 1024;

// Sums of levels times digits of one segment, [rows 0..7 and 8..15][digit], as pairs of 16 bits.
template <int bits, int digits>
TERCET_INLINE void sum_segment(const uint32_t* codes, const Segment& s, const uint32_t* words,
                               __m256i lowest, __m256i (&sums)[2][digits]) {
  constexpr int fields = 8 / bits;
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

// out[16] = W x for one block of rows. Exact: x is codes, and the result that of multiply_vector.
template <int bits, bool exact, int digits>
void multiply_block(const Weight& w, const Vector& x, int64_t block, float* out) {
  const uint32_t *codes = w.block_codes(block), *words = x.segments->words.data();
  const Segment *segment = x.segments->list.data(), *end = segment + x.segments->list.size();
  const __m256i lowest = _mm256_set1_epi8(static_cast<char>(w.layout->lowest));
  F total = splat(0.0f);
  for (int64_t group = 0; group < w.layout->groups; ++group) {
    const int64_t at = (block * w.layout->groups + group) * 16;
    F sum = splat(0.0f);
    I integers = zero_int();
    for (; segment != end && segment->group == group; ++segment) {
      const uint32_t* from = codes + segment->first_run * 16;
      __m256i sums[2][digits];
      sum_segment<bits, digits>(from, *segment, words + segment->words, lowest, sums);
      const I combined{combine_digits<digits>(sums[0]), combine_digits<digits>(sums[1])};
      if constexpr (exact) integers = add_int(integers, combined);
      else sum = fma(to_float(combined), splat(segment->step), sum);
    }
    if constexpr (exact) sum = to_float(integers);
    if (w.zero) sum = fma(load_number(w.zero, w.zero_number, at), splat(-x.sums[group]), sum);
    total = fma(load_number(w.scale, w.scale_number, at), sum, total);
  }
  store(out, total);
}

#include "add_integers.hpp"

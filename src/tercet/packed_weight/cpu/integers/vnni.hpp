// The product of one row of x on AVX-512's VNNI: as avx2.hpp, but four columns of sixteen
// rows are one instruction's work, and are summed in 32 bits at once.
//
// One block of rows after the other: four at once share what is read of x and are quicker from a cache
// (int4 [6144, 2304]: 153 us of one core in place of 197), but from memory, where a model's weights come
// from, their four streams take longer (int4 [3072, 576]: 73 in place of 40, int5 [49152, 576]: 1316 in
// place of 835; floats 77 and 1735).

constexpr bool kWideSums = true;
#include "eight_avx2.hpp"
#include "cut_segments.hpp"

TERCET_INLINE I splat_int(uint32_t word) { return _mm512_set1_epi32(static_cast<int32_t>(word)); }

TERCET_INLINE I splat_byte(int32_t byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }

// Field f of codes; codes of 8 bits are levels, which are counted from the lowest here.
template <int bits>
TERCET_INLINE I field(I codes, int f, I lowest) {
  if constexpr (bits == 8) return _mm512_sub_epi8(codes, lowest);
  const I mask = _mm512_set1_epi8(bits == 2 ? 3 : 15);
  return _mm512_and_si512(f ? _mm512_srli_epi32(codes, bits * f) : codes, mask);
}

// digit0 + 256 digit1 + 65536 digit2, which fits 32 bits
template <int digits>
TERCET_INLINE I combine_digits(const I (&sums)[digits]) {
  I combined = sums[0];
  if constexpr (digits > 1) combined = add_int(combined, _mm512_slli_epi32(sums[1], 8));
  if constexpr (digits > 2) combined = add_int(combined, _mm512_slli_epi32(sums[2], 16));
  return combined;
}

// Sums of levels times x in steps, of one segment.
template <int bits, int digits>
TERCET_INLINE I sum_segment(const uint32_t* codes, const Segment& s, const uint32_t* words, I lowest) {
  constexpr int fields = 8 / bits;
  I sums[digits];
  const int64_t stride = s.runs * fields;
  for (int d = 0; d < digits; ++d) sums[d] = splat_int(s.lowest[d]);
  for (int64_t run = 0; run < s.runs; ++run, codes += 16, words += fields) {
    __builtin_prefetch(codes + kAhead);
    const I held = load_codes(codes);
#pragma GCC unroll 4
    for (int f = 0; f < fields; ++f) {
      const I some = field<bits>(held, f, lowest);
#pragma GCC unroll 4
      for (int d = 0; d < digits; ++d)
        sums[d] = _mm512_dpbusd_epi32(sums[d], some, splat_int(words[d * stride + f]));
    }
  }
  return combine_digits<digits>(sums);
}

#include "add_integers.hpp"

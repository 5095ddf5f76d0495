// The product of one row of x on AVX-512's VNNI: as avx2.hpp, but four columns of sixteen
// rows are one instruction's work, and are summed in 32 bits at once.
//
// One block of rows after the other: four at once share what is read of x and are quicker from a cache
// (int4 [6144, 2304]: 153 us of one core in place of 197), but from memory, where a model's weights come
// from, their four streams take longer (int4 [3072, 576]: 73 in place of 40, int5 [49152, 576]: 1316 in
// place of 835; floats 77 and 1735).

constexpr bool kWideSums = true;
#include "cut_segments.hpp"

TERCET_INLINE I splat_int(uint32_t word) { return _mm512_set1_epi32(static_cast<int32_t>(word)); }

// Field f of codes; codes of 8 bits are levels, which are counted from the lowest here.
template <int bits>
TERCET_INLINE I field(I codes, int f, I lowest) {
  if constexpr (bits == 8) return _mm512_sub_epi8(codes, lowest);
  const I mask = _mm512_set1_epi8(bits == 2 ? 3 : 15);
  return _mm512_and_si512(f ? _mm512_srli_epi32(codes, bits * f) : codes, mask);
}

// Codes are asked for a page before they are used, in dwords (avx2.hpp).
constexpr int64_t kAhead = 1024;

// Sums of levels times digits of one segment, of sixteen rows.
template <int bits, int digits>
TERCET_INLINE void sum_segment(const uint32_t* codes, const Segment& s, const uint32_t* words,
                               I lowest, I (&sums)[digits]) {
  constexpr int fields = 8 / bits;
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
}

// digit0 + 256 digit1 + 65536 digit2, which fits 32 bits
template <int digits>
TERCET_INLINE I combine_digits(const I (&sums)[digits]) {
  I combined = sums[0];
  if constexpr (digits > 1) combined = add_int(combined, _mm512_slli_epi32(sums[1], 8));
  if constexpr (digits > 2) combined = add_int(combined, _mm512_slli_epi32(sums[2], 16));
  return combined;
}

// out[16] = W x for one block of rows. Exact: x is codes, and the result that of multiply_vector.
template <int bits, bool exact, int digits>
void multiply_block(const Weight& w, const Vector& x, int64_t block, float* out) {
  const uint32_t *codes = w.block_codes(block), *words = x.segments->words.data();
  const Segment *segment = x.segments->list.data(), *end = segment + x.segments->list.size();
  const I lowest = _mm512_set1_epi8(static_cast<char>(w.layout->lowest));
  F total = splat(0.0f);
  for (int64_t group = 0; group < w.layout->groups; ++group) {
    const int64_t at = (block * w.layout->groups + group) * 16;
    F sum = splat(0.0f);
    I integers = zero_int();
    for (; segment != end && segment->group == group; ++segment) {
      const uint32_t* from = codes + segment->first_run * 16;
      I sums[digits];
      sum_segment<bits, digits>(from, *segment, words + segment->words, lowest, sums);
      const I combined = combine_digits<digits>(sums);
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

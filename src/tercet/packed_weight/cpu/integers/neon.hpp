// The product of one row of x on NEON: as avx2.hpp, by multiplications of bytes that are added in 16 bits.
// Included inside a namespace, after packed_product.hpp.

constexpr bool kWideSums = false;
#include "eight_neon.hpp"
#include "cut_segments.hpp"
#include "fields_neon.hpp"

// Sums of levels times x in steps, of one segment, eight rows after the other.
template <int bits, int digits>
TERCET_INLINE I sum_segment(const uint32_t* codes, const Segment& s, const uint32_t* words,
                            int8x16_t lowest) {
  constexpr int fields = 8 / bits;
  const int64_t stride = s.runs * fields;
  int32x4_t found[4];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    int16x8_t sums[digits][4] = {};  // [digit][two rows, eight columns]
    const uint32_t *from = codes + 8 * half, *word = words;
    for (int64_t run = 0; run < s.runs; ++run, from += 16, word += fields) {
      if (!half) __builtin_prefetch(from + kAhead);
      const uint8x16_t held[2] = {load_bytes(from), load_bytes(from + 4)};
      for_each_field<fields>([&](auto f) TERCET_INLINED {
        int8x16_t some[2];
        for (int i = 0; i < 2; ++i) some[i] = field<bits, f.value>(held[i], lowest);
        for (int d = 0; d < digits; ++d) {
          const int8x16_t x = vreinterpretq_s8_u32(vld1q_dup_u32(word + d * stride + f.value));
          for (int i = 0; i < 2; ++i) {
            sums[d][2 * i] = vmlal_s8(sums[d][2 * i], vget_low_s8(some[i]), vget_low_s8(x));
            sums[d][2 * i + 1] = vmlal_high_s8(sums[d][2 * i + 1], some[i], x);
          }
        }
      });
    }
    for (int i = 0; i < 2; ++i) {
      int32x4_t rows[digits];
      for (int d = 0; d < digits; ++d)
        rows[d] = vaddq_s32(vdupq_n_s32(s.lowest[d]), vpaddq_s32(vpaddlq_s16(sums[d][2 * i]),
                                                                 vpaddlq_s16(sums[d][2 * i + 1])));
      found[2 * half + i] = combine_digits<digits>(rows);
    }
  }
  return {found[0], found[1], found[2], found[3]};
}

#include "add_integers.hpp"

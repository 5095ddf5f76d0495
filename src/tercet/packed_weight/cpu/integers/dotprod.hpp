// The product of one row of x on Arm's dot products: as vnni.hpp, four columns of four rows an instruction.
// Included inside a namespace, after packed_product.hpp, under the target pragma.

constexpr bool kWideSums = true;
#include "eight_neon.hpp"
#include "cut_segments.hpp"
#include "fields_neon.hpp"

// sums += rows times word `lane` of x
template <int lane, int words>
TERCET_INLINE int32x4_t add_dots(int32x4_t sums, int8x16_t rows, const uint32_t* x) {
  if constexpr (words == 4) {
    return vdotq_laneq_s32(sums, rows, vreinterpretq_s8_u32(vld1q_u32(x)), lane);
  } else if constexpr (words == 2) {
    return vdotq_lane_s32(sums, rows, vreinterpret_s8_u32(vld1_u32(x)), lane);
  } else {
    return vdotq_s32(sums, rows, vreinterpretq_s8_u32(vld1q_dup_u32(x)));
  }
}

// Sums of levels times x in steps, of one segment.
template <int bits, int digits>
TERCET_INLINE I sum_segment(const uint32_t* codes, const Segment& s, const uint32_t* words,
                            int8x16_t lowest) {
  constexpr int fields = 8 / bits;
  int32x4_t sums[4][digits];  // [four rows][digit]
  const int64_t stride = s.runs * fields;
  for (int i = 0; i < 4; ++i)
    for (int d = 0; d < digits; ++d) sums[i][d] = vdupq_n_s32(s.lowest[d]);
  for (int64_t run = 0; run < s.runs; ++run, codes += 16, words += fields) {
    __builtin_prefetch(codes + kAhead);
    uint8x16_t held[4];
    for (int i = 0; i < 4; ++i) held[i] = load_bytes(codes + 4 * i);
    for_each_field<fields>([&](auto f) TERCET_INLINED {
      for (int i = 0; i < 4; ++i) {
        const int8x16_t rows = field<bits, f.value>(held[i], lowest);
        for (int d = 0; d < digits; ++d)
          sums[i][d] = add_dots<f.value, fields>(sums[i][d], rows, words + d * stride);
      }
    });
  }
  return {combine_digits<digits>(sums[0]), combine_digits<digits>(sums[1]),
          combine_digits<digits>(sums[2]), combine_digits<digits>(sums[3])};
}

#include "add_integers.hpp"

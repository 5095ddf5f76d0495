// Eight lanes of NEON, for cut_segments.hpp: as eight_avx2.hpp. Included inside a namespace, under a
// target pragma.
struct Eight {
  float32x4_t low, high;
};
struct EightIntegers {
  int32x4_t low, high;
};

TERCET_INLINE Eight load_numbers(const float* from) { return {vld1q_f32(from), vld1q_f32(from + 4)}; }

TERCET_INLINE void store_numbers(float* to, Eight x) {
  vst1q_f32(to, x.low);
  vst1q_f32(to + 4, x.high);
}

TERCET_INLINE Eight same_number(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }

TERCET_INLINE Eight size_of(Eight x) { return {vabsq_f32(x.low), vabsq_f32(x.high)}; }

TERCET_INLINE Eight largest(Eight a, Eight b) {
  return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)};
}

TERCET_INLINE Eight sum_of(Eight a, Eight b) {
  return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}

TERCET_INLINE float largest_of(Eight x) { return vmaxvq_f32(vmaxq_f32(x.low, x.high)); }

TERCET_INLINE float sum_of(Eight x) { return vaddvq_f32(vaddq_f32(x.low, x.high)); }

TERCET_INLINE Eight masks(uint32x4_t low, uint32x4_t high) {
  return {vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)};
}

TERCET_INLINE uint32x4_t word_of(float32x4_t x) { return vreinterpretq_u32_f32(x); }

// All bits of a lane where it holds, none elsewhere.
TERCET_INLINE Eight at_least(Eight a, Eight b) {
  return masks(vcgeq_f32(a.low, b.low), vcgeq_f32(a.high, b.high));
}

TERCET_INLINE Eight above(Eight a, Eight b) {
  return masks(vcgtq_f32(a.low, b.low), vcgtq_f32(a.high, b.high));
}

TERCET_INLINE Eight not_at_most(Eight a, Eight b) {
  return masks(vmvnq_u32(vcleq_f32(a.low, b.low)), vmvnq_u32(vcleq_f32(a.high, b.high)));
}

TERCET_INLINE Eight either(Eight a, Eight b) {
  return masks(vorrq_u32(word_of(a.low), word_of(b.low)), vorrq_u32(word_of(a.high), word_of(b.high)));
}

TERCET_INLINE bool anywhere(Eight mask) {
  return vmaxvq_u32(vorrq_u32(word_of(mask.low), word_of(mask.high))) != 0;
}

// x where it holds, 0 elsewhere; and the other way round
TERCET_INLINE Eight where(Eight mask, Eight x) {
  return masks(vandq_u32(word_of(mask.low), word_of(x.low)),
               vandq_u32(word_of(mask.high), word_of(x.high)));
}

TERCET_INLINE Eight where_not(Eight mask, Eight x) {
  return masks(vbicq_u32(word_of(x.low), word_of(mask.low)),
               vbicq_u32(word_of(x.high), word_of(mask.high)));
}

// x * factor, rounded
TERCET_INLINE EightIntegers to_steps(Eight x, Eight factor) {
  return {vcvtnq_s32_f32(vmulq_f32(x.low, factor.low)), vcvtnq_s32_f32(vmulq_f32(x.high, factor.high))};
}

TERCET_INLINE int16x4_t take_digit(int32x4_t& integers) {
  const int32x4_t low = vshrq_n_s32(vshlq_n_s32(integers, 24), 24);
  integers = vshrq_n_s32(vsubq_s32(integers, low), 8);
  return vmovn_s32(low);
}

// Byte B of field f of a dword of codes holds column fields * B + f: digits are put into that order.
template <int bits>
TERCET_INLINE int8x16_t in_order_of_codes(int8x16_t bytes) {
  if constexpr (bits == 8) return bytes;
  constexpr uint8_t of_two[] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  constexpr uint8_t of_four[] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  return vqtbl1q_s8(bytes, vld1q_u8(bits == 2 ? of_two : of_four));
}

// The lowest digits of integers [32], in the order of codes; the integers become what is left of them.
template <int bits>
TERCET_INLINE void take_digits(EightIntegers* integers, char* to) {
  for (int i = 0; i < 4; i += 2) {
    int8x8_t bytes[2];
    for (int j = 0; j < 2; ++j) {
      const int16x4_t low = take_digit(integers[i + j].low), high = take_digit(integers[i + j].high);
      bytes[j] = vmovn_s16(vcombine_s16(low, high));
    }
    vst1q_s8(reinterpret_cast<int8_t*>(to + 8 * i),
             in_order_of_codes<bits>(vcombine_s8(bytes[0], bytes[1])));
  }
}

// What sums of codes times digits [64] begin with to be sums of levels: Segment::lowest.
TERCET_INLINE uint32_t start_of_sums(const char* digits, int32_t lowest) {
  int32_t sum = 0;
  for (int i = 0; i < 64; i += 16)
    sum += vaddlvq_s8(vld1q_s8(reinterpret_cast<const int8_t*>(digits + i)));
  return static_cast<uint32_t>(sum * lowest);
}

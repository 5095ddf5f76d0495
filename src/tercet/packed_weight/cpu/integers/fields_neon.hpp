// Codes in sixteen bytes of NEON, and the digits of their sums. Included inside a namespace, under a
// target pragma.

TERCET_INLINE int8x16_t splat_byte(int32_t byte) { return vdupq_n_s8(static_cast<int8_t>(byte)); }

TERCET_INLINE uint8x16_t load_bytes(const uint32_t* from) {
  return vreinterpretq_u8_u32(vld1q_u32(from));
}

// Field f of codes; codes of 8 bits are levels, which are counted from the lowest here.
template <int bits, int f>
TERCET_INLINE int8x16_t field(uint8x16_t codes, int8x16_t lowest) {
  if constexpr (bits == 8) return vsubq_s8(vreinterpretq_s8_u8(codes), lowest);
  if constexpr (f > 0) codes = vshrq_n_u8(codes, bits * f);
  // nothing is above the last field
  if constexpr (f < 8 / bits - 1) codes = vandq_u8(codes, vdupq_n_u8(bits == 2 ? 3 : 15));
  return vreinterpretq_s8_u8(codes);
}

// call(0), ..., call(fields - 1), each a constant
template <int fields, class Call>
TERCET_INLINE void for_each_field(Call call) {
  call(std::integral_constant<int, 0>());
  if constexpr (fields > 1) call(std::integral_constant<int, 1>());
  if constexpr (fields > 2) call(std::integral_constant<int, 2>());
  if constexpr (fields > 3) call(std::integral_constant<int, 3>());
}

// digit0 + 256 digit1 + 65536 digit2, which fits 32 bits
template <int digits>
TERCET_INLINE int32x4_t combine_digits(const int32x4_t (&sums)[digits]) {
  int32x4_t combined = sums[0];
  if constexpr (digits > 1) combined = vaddq_s32(combined, vshlq_n_s32(sums[1], 8));
  if constexpr (digits > 2) combined = vaddq_s32(combined, vshlq_n_s32(sums[2], 16));
  return combined;
}

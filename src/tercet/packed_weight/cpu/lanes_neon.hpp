// Sixteen float lanes in four NEON registers. Included inside a namespace, under the target pragma.
struct F {
  float32x4_t q0, q1, q2, q3;
};
struct I {
  int32x4_t q0, q1, q2, q3;
};
using Table = uint8x16x4_t;  // sixteen floats, read by the byte

constexpr int kTileRows = 6;  // with four registers of W and one of x 29 of 32
constexpr int kTileBlocks = 1;

// Of each register of the lanes what a function makes of it.
template <class Lanes, class Of, class... From>
TERCET_INLINE Lanes each(Of of, From... from) {
  return {of(from.q0...), of(from.q1...), of(from.q2...), of(from.q3...)};
}

TERCET_INLINE F load(const float* from) {
  return {vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)};
}
TERCET_INLINE F load(const int8_t* from) {
  const int8x16_t bytes = vld1q_s8(from);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}
TERCET_INLINE void store(float* to, F a) {
  vst1q_f32(to, a.q0);
  vst1q_f32(to + 4, a.q1);
  vst1q_f32(to + 8, a.q2);
  vst1q_f32(to + 12, a.q3);
}
TERCET_INLINE F splat(float a) {
  return {vdupq_n_f32(a), vdupq_n_f32(a), vdupq_n_f32(a), vdupq_n_f32(a)};
}
TERCET_INLINE F add(F a, F b) {
  return each<F>([](float32x4_t a, float32x4_t b) TERCET_INLINED { return vaddq_f32(a, b); }, a, b);
}
TERCET_INLINE F mul(F a, F b) {
  return each<F>([](float32x4_t a, float32x4_t b) TERCET_INLINED { return vmulq_f32(a, b); }, a, b);
}
TERCET_INLINE F divide(F a, F b) {
  return each<F>([](float32x4_t a, float32x4_t b) TERCET_INLINED { return vdivq_f32(a, b); }, a, b);
}
// b where either is NaN
TERCET_INLINE F larger(F a, F b) {
  return each<F>([](float32x4_t a, float32x4_t b) TERCET_INLINED {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
  }, a, b);
}
TERCET_INLINE F smaller(F a, F b) {
  return each<F>([](float32x4_t a, float32x4_t b) TERCET_INLINED {
    return vbslq_f32(vcltq_f32(a, b), a, b);
  }, a, b);
}
TERCET_INLINE F fma(F a, F b, F c) {
  return each<F>([](float32x4_t a, float32x4_t b, float32x4_t c) TERCET_INLINED {
    return vfmaq_f32(c, a, b);
  }, a, b, c);
}
TERCET_INLINE F fused(F a, F b, F c) { return fma(a, b, c); }
TERCET_INLINE float32x4_t sum_quarters(F a) {
  return vaddq_f32(vaddq_f32(a.q0, a.q1), vaddq_f32(a.q2, a.q3));
}
// the sums of the lanes of each, to to[4]
TERCET_INLINE void sum_lanes(F a, F b, F c, F d, float* to) {
  vst1q_f32(to, vpaddq_f32(vpaddq_f32(sum_quarters(a), sum_quarters(b)),
                           vpaddq_f32(sum_quarters(c), sum_quarters(d))));
}
TERCET_INLINE I to_int(F a) {
  return each<I>([](float32x4_t a) TERCET_INLINED { return vcvtnq_s32_f32(a); }, a);
}
TERCET_INLINE F to_float(I a) {
  return each<F>([](int32x4_t a) TERCET_INLINED { return vcvtq_f32_s32(a); }, a);
}
// 2^n for n in [-126, 127]
TERCET_INLINE F two_to(I n) {
  return each<F>([](int32x4_t n) TERCET_INLINED {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
  }, n);
}
TERCET_INLINE I add_int(I a, I b) {
  return each<I>([](int32x4_t a, int32x4_t b) TERCET_INLINED { return vaddq_s32(a, b); }, a, b);
}
TERCET_INLINE I zero_int() {
  return {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
}
TERCET_INLINE void store_int(int32_t* to, I a) {
  vst1q_s32(to, a.q0);
  vst1q_s32(to + 4, a.q1);
  vst1q_s32(to + 8, a.q2);
  vst1q_s32(to + 12, a.q3);
}
TERCET_INLINE int32x4_t load_four_codes(const uint32_t* from) {
  return vreinterpretq_s32_u32(vld1q_u32(from));
}
TERCET_INLINE I load_codes(const uint32_t* from) {
  return {load_four_codes(from), load_four_codes(from + 4), load_four_codes(from + 8),
          load_four_codes(from + 12)};
}
TERCET_INLINE Table load_table(const float* levels) {
  Table table;
  for (int i = 0; i < 4; ++i) table.val[i] = vreinterpretq_u8_f32(vld1q_f32(levels + 4 * i));
  return table;
}

// table[(codes >> shift) & 15]: the four bytes of float i are bytes 4 i to 4 i + 3 of the table
template <int shift>
TERCET_INLINE float32x4_t lookup_four(const Table& table, int32x4_t codes) {
  uint32x4_t code = vreinterpretq_u32_s32(codes);
  if constexpr (shift > 0) code = vshrq_n_u32(code, shift);
  if constexpr (shift < 28) code = vandq_u32(code, vdupq_n_u32(15));
  const uint32x4_t bytes = vmlaq_u32(vdupq_n_u32(0x03020100), code, vdupq_n_u32(0x04040404));
  return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)));
}
template <int shift>
TERCET_INLINE F lookup16(const Table& table, I codes) {
  return {lookup_four<shift>(table, codes.q0), lookup_four<shift>(table, codes.q1),
          lookup_four<shift>(table, codes.q2), lookup_four<shift>(table, codes.q3)};
}

template <int byte>
TERCET_INLINE F signed_byte(I codes) {
  return each<F>([](int32x4_t code) TERCET_INLINED {
    if constexpr (byte < 3) code = vshlq_n_s32(code, 24 - 8 * byte);
    return vcvtq_f32_s32(vshrq_n_s32(code, 24));
  }, codes);
}

template <int byte>
TERCET_INLINE F lookup256(const float* levels, I codes) {
  int32_t code[16];
  float found[16];
  store_int(code, codes);
  for (int j = 0; j < 16; ++j) found[j] = levels[code[j] >> 8 * byte & 255];
  return load(found);
}

TERCET_INLINE float32x4_t load_four_halves(const uint16_t* from) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
TERCET_INLINE F load_half(const uint16_t* from) {
  return {load_four_halves(from), load_four_halves(from + 4), load_four_halves(from + 8),
          load_four_halves(from + 12)};
}

TERCET_INLINE float32x4_t load_four_bfloats(const uint16_t* from) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
}
TERCET_INLINE F load_bfloat(const uint16_t* from) {
  return {load_four_bfloats(from), load_four_bfloats(from + 4), load_four_bfloats(from + 8),
          load_four_bfloats(from + 12)};
}

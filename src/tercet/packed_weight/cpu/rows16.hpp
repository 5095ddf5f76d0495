// The "rows16" layout: sixteen output rows side by side, as described in tercet/packed_weight/rows16.py.
//
//   codes  uint32 [ceil(N/16)][groups * runs_per_group][16]   one dword: 32/bits codes along K
//   scale  f32 | f16 | bf16 [ceil(N/16)][groups][16]
//   zero   null, or like scale
//   W[row][k] = (level(code) - zero) * scale
#pragma once

#include <cstdint>
#include <cstring>

namespace tercet {

// What kernels are compiled for: plain C++; on x86 AVX2 with FMA and F16C, AVX-512F with these, and
// AVX-512BW and VNNI with all of them; on Arm NEON, and dot products with it. Counted as
// tercet.environment.CPU_ISAS.
#if defined(__aarch64__)
enum Isa : int32_t { kPortable = 0, kNeon = 1, kDotprod = 2 };
#else
enum Isa : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Vnni = 3 };
#endif

enum Number : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kInt8 = 3 };

// Mirrors tercet.packed_weight.rows16.Layout, field by field.
struct Layout {
  int64_t rows, columns, group, groups, runs_per_group;
  int32_t bits, is_signed;  // is_signed: 8-bit codes are two's complement values, no table
  float levels[256];        // of each code, repeated up to 256 entries
  int32_t lowest, count;    // of levels that are consecutive integers; a count of 0: they are not
  int32_t digits;           // of one row of x where it is multiplied as integers: 3, or 2 or 1
};

struct Weight {
  const Layout* layout;
  const uint32_t* codes;
  const void* scale;
  const void* zero;
  int32_t scale_number, zero_number;

  int per_run() const { return 32 / layout->bits; }
  int64_t runs() const { return layout->groups * layout->runs_per_group; }
  int64_t padded_columns() const { return runs() * per_run(); }
  int64_t blocks() const { return (layout->rows + 15) / 16; }
  const uint32_t* block_codes(int64_t block) const { return codes + block * runs() * 16; }
};

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  // shifting exponent and mantissa into place leaves the value 2^112 too small, subnormals included
  if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  return bits_to_float(sign | float_to_bits(bits_to_float(rest << 13) * 0x1p112f));
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return sign | 0x7e00;
  if (rest >= 0x477ff000) return sign | 0x7c00;
  // adding a power of two lets the hardware round a subnormal half, ties to even
  if (rest < 0x38800000) return sign | (float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000);
  return sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

inline float bfloat_to_float(uint16_t bfloat) {
  return bits_to_float(static_cast<uint32_t>(bfloat) << 16);
}

inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float read_number(const void* from, int32_t number, int64_t index) {
  if (number == kFloat32) return static_cast<const float*>(from)[index];
  if (number == kInt8) return static_cast<const int8_t*>(from)[index];
  const uint16_t word = static_cast<const uint16_t*>(from)[index];
  return number == kFloat16 ? half_to_float(word) : bfloat_to_float(word);
}

inline void write_number(void* to, int32_t number, int64_t index, float value) {
  if (number == kFloat32) {
    static_cast<float*>(to)[index] = value;
  } else {
    static_cast<uint16_t*>(to)[index] =
        number == kFloat16 ? float_to_half(value) : float_to_bfloat(value);
  }
}

// W[row][0:K] to `to`, rounded to `number`; element 0 goes to index `at`.
inline void decode_row(const Weight& w, int64_t row, void* to, int32_t number, int64_t at) {
  const Layout& layout = *w.layout;
  const int64_t block = row / 16, lane = row % 16;
  const uint32_t mask = layout.bits == 8 ? 0xff : (1u << layout.bits) - 1;
  for (int64_t group = 0; group < layout.groups; ++group) {
    const int64_t index = (block * layout.groups + group) * 16 + lane;
    const float scale = read_number(w.scale, w.scale_number, index);
    const float zero = w.zero ? read_number(w.zero, w.zero_number, index) : 0.0f;
    const uint32_t* run = w.block_codes(block) + group * layout.runs_per_group * 16 + lane;
    const int64_t first = group * layout.group;
    const int64_t last = first + layout.group < layout.columns ? first + layout.group : layout.columns;
    for (int64_t k = first; k < last; run += 16) {
      uint32_t word = *run;
      for (int i = 0; i < w.per_run() && k < last; ++i, ++k, word >>= layout.bits % 32) {
        const uint32_t code = word & mask;
        const float level = layout.is_signed ? static_cast<int8_t>(code) : layout.levels[code];
        write_number(to, number, at + k, (level - zero) * scale);
      }
    }
  }
}

}  // namespace tercet

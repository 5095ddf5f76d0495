// x as integers, for products on int8 multipliers: a row of x is cut into segments, and in each
//
//   x[k] = step * (digit0[k] + 256 digit1[k] + 65536 digit2[k]),  digits in [-128, 127].
//
// A step is a power of two, so x is held within 2^-22 of the largest of its segment; numbers of 16
// bits that are at most 2^11 apart are held exactly. A segment whose largest is more than kSpread
// times the mean is taken twice or more, largest numbers first, each within 2^-19 of itself: outliers
// cost the others nothing.
//
// With two digits in place of three it is held within 2^-14 of the largest, with one within 1/254, and
// the step is no power of two then.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "packed_weight/cpu/rows16.hpp"

namespace tercet {

constexpr int kSegmentColumns = 64;
constexpr int kDigits = 3;
// of x in steps: times 8 levels and 64 columns a sum still fits 32 bits, and with two digits 16 bits
// hold both
constexpr int bits_of(int digits) { return digits == 3 ? 22 : 14; }
constexpr float kLargestByte = 127.0f;
constexpr float kSpread = 8.0f;
constexpr int kMostCodes = 32;  // more make segments so short that no largest number is told apart
constexpr int kMostPasses = 8;
constexpr float kSmallest = 0x1p-100f;  // of a segment's largest: its step is a normal number

// Codes are asked for a page before they are used, in dwords: the processor's own guesses end at each
// page. On one core of an AMD EPYC a product of int4 [3072, 576] takes 0.83 of the time, one of int5
// [49152, 576] 0.78; on two cores, which memory feeds together, 0.97 and 0.78.
constexpr int64_t kAhead = 1024;

struct Segment {
  int64_t group, first_run, runs;
  int64_t words;  // where its digits begin: [digit][run][field], four bytes each
  float step;
  // for each digit, the lowest level times the sum of the digits: what a sum of codes lacks to be one
  // of levels. Where sums have 16 bits, of two even and two odd bytes of every dword, as two halves
  uint32_t lowest[kDigits];
};

struct Segments {
  std::vector<Segment> list;
  std::vector<uint32_t> words;
};

// How the levels of W are codes counted from `lowest`; none where they are not, or too many.
struct Count {
  int32_t lowest = 0, codes = 0;

  explicit Count(const Layout& layout) {
    if (layout.count > 2 && layout.count <= kMostCodes) lowest = layout.lowest, codes = layout.count;
  }

  // Columns of a segment: levels times digits, a pair of them for each four columns, below 2^15; where
  // sums are wide, levels times x in steps below 2^31.
  int columns(bool wide) const {
    const int32_t highest = lowest + codes - 1, largest = highest > -lowest ? highest : -lowest;
    int columns = kSegmentColumns;
    while (columns * largest > (wide ? 8 : 4) * kSegmentColumns) columns /= 2;
    return columns;
  }
};

}  // namespace tercet

// One row of x in the segments of segments.hpp. Included inside a namespace, under a target pragma,
// after the instruction set's eight lanes and kWideSums: whether sums are held in 32 bits, or in 16 of
// columns that are a few apart.

// Adds a segment of integers [kSegmentColumns], of which the first `count` are its own.
template <int bits, int digits>
void add_segment(Segments& to, Segment segment, const Count& levels, EightIntegers* integers,
                 int count) {
  const size_t begin = to.words.size();
  to.words.resize(begin + (digits * count + kSegmentColumns) / 4);
  segment.words = begin;
  char* bytes = reinterpret_cast<char*>(to.words.data() + begin);
  for (int digit = 0; digit < digits; ++digit, bytes += count) {
    for (int half = 0; half < 2; ++half) take_digits<bits>(integers + 4 * half, bytes + 32 * half);
    segment.lowest[digit] = start_of_sums(bytes, levels.lowest);
  }
  to.words.resize(begin + digits * count / 4);
  to.list.push_back(segment);
}

// The step of x whose largest number is that one, and what x is multiplied with to be in steps.
template <int digits>
TERCET_INLINE float step_of(float largest, float* inverse) {
  if constexpr (digits == 1) {
    *inverse = kLargestByte / largest;
    return largest / kLargestByte;
  }
  // 2^exponent is the first power of two above the largest
  const int exponent = static_cast<int>(float_to_bits(largest) >> 23) - 126;
  *inverse = bits_to_float(static_cast<uint32_t>(bits_of(digits) - exponent + 127) << 23);
  return bits_to_float(static_cast<uint32_t>(exponent - bits_of(digits) + 127) << 23);
}

// x[count] in as many segments as its spread takes. False where it holds inf or NaN, is too small or
// spread too far.
template <int bits, int digits>
bool add_numbers(Segments& to, Segment segment, const Count& levels, const float* x, int count) {
  alignas(32) float held[kSegmentColumns] = {};
  std::memcpy(held, x, count * sizeof(float));
  for (int pass = 1; pass <= kMostPasses; ++pass) {
    const Eight none = same_number(0.0f);
    Eight most = none, sum = none, some = none, odd = none;
    for (int i = 0; i < kSegmentColumns; i += 8) {
      const Eight size = size_of(load_numbers(held + i));
      most = largest(most, size), sum = sum_of(sum, size);
      some = sum_of(some, where(above(size, none), same_number(1.0f)));
      odd = either(odd, not_at_most(size, same_number(0x1.fffffep127f)));
    }
    const float highest = largest_of(most);
    if (highest == 0.0f && !anywhere(odd)) return true;
    if (anywhere(odd) || highest < kSmallest) return false;
    const bool all = highest * sum_of(some) <= kSpread * sum_of(sum);
    const Eight limit = same_number(all ? 0.0f : highest / kSpread);
    float per_step;
    segment.step = step_of<digits>(highest, &per_step);
    const Eight inverse = same_number(per_step);
    EightIntegers integers[kSegmentColumns / 8];
    for (int i = 0; i < kSegmentColumns; i += 8) {
      const Eight now = load_numbers(held + i), take = at_least(size_of(now), limit);
      integers[i / 8] = to_steps(where(take, now), inverse);
      store_numbers(held + i, where_not(take, now));
    }
    add_segment<bits, digits>(to, segment, levels, integers, count);
    if (all) return true;
  }
  return false;
}

// x, each group padded to whole runs, in segments. Exact: x is codes. False: use multiply_vector.
// A segment's rounding is relative to its largest number. Of few columns one row's levels may be zero
// at all but a small one, which then has that rounding to itself: so these are multiplied as floats.
template <int bits, bool exact, int digits>
bool cut_segments(const Layout& layout, const float* x, Segments& to) {
  if (!exact && layout.columns < kSegmentColumns) return false;
  constexpr int per_run = 32 / bits;
  const Count levels(layout);
  const int64_t step = levels.columns(kWideSums) / per_run;
  to.list.clear(), to.words.clear();
  for (int64_t group = 0; group < layout.groups; ++group)
    for (int64_t run = 0; run < layout.runs_per_group; run += step) {
      const int64_t first = group * layout.runs_per_group + run;
      const int64_t left = layout.runs_per_group - run, runs = left < step ? left : step;
      const Segment segment{group, first, runs, 0, 1.0f, {}};
      const float* from = x + first * per_run;
      const int count = static_cast<int>(runs) * per_run;
      if constexpr (!exact) {
        if (!add_numbers<bits, digits>(to, segment, levels, from, count)) return false;
        continue;
      }
      alignas(32) float held[kSegmentColumns] = {};
      std::memcpy(held, from, count * sizeof(float));
      EightIntegers integers[kSegmentColumns / 8];
      for (int i = 0; i < kSegmentColumns; i += 8)
        integers[i / 8] = to_steps(load_numbers(held + i), same_number(1.0f));
      add_segment<bits, digits>(to, segment, levels, integers, count);
    }
  return true;
}

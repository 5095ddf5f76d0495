// One row of x in the segments of segments.hpp, on AVX2. Included inside a namespace, under a target
// pragma, after kWideSums: whether sums are held in 32 bits, or in 16 a pair of columns.

TERCET_INLINE __m256 size_of(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

TERCET_INLINE float largest_of(__m256 x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

TERCET_INLINE float sum_of(__m256 x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Byte B of field f of a dword of codes holds column fields * B + f: digits are put into that order.
template <int bits>
TERCET_INLINE __m256i in_order_of_codes(__m256i bytes) {
  if constexpr (bits == 8) return bytes;
  const __m128i order = bits == 2
      ? _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
      : _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  return _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order));
}

// Adds a segment of integers [kSegmentColumns], of which the first `count` are its own.
template <int bits, int digits>
void add_segment(Segments& to, Segment segment, const Count& levels, __m256i* integers, int count) {
  const size_t begin = to.words.size();
  to.words.resize(begin + (digits * count + kSegmentColumns) / 4);
  segment.words = begin;
  char* bytes = reinterpret_cast<char*>(to.words.data() + begin);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int digit = 0; digit < digits; ++digit, bytes += count) {
    __m256i sum = _mm256_setzero_si256();
    for (int half = 0; half < 2; ++half) {
      __m256i low[4];
      for (int i = 0; i < 4; ++i) {
        __m256i& from = integers[4 * half + i];
        low[i] = _mm256_srai_epi32(_mm256_slli_epi32(from, 24), 24);
        from = _mm256_srai_epi32(_mm256_sub_epi32(from, low[i]), 8);
      }
      const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(low[0], low[1]),
                                                _mm256_packs_epi32(low[2], low[3]));
      const __m256i placed = in_order_of_codes<bits>(_mm256_permutevar8x32_epi32(packed, order));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + 32 * half), placed);
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), placed));
    }
    const __m128i four = _mm_add_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    const __m128i two = _mm_add_epi16(four, _mm_unpackhi_epi64(four, four));
    const __m128i one = _mm_add_epi16(two, _mm_srli_epi64(two, 32));
    const __m128i level = _mm_set1_epi16(static_cast<int16_t>(levels.lowest));
    const __m128i lowest = kWideSums ? _mm_madd_epi16(one, level) : _mm_mullo_epi16(one, level);
    segment.lowest[digit] = static_cast<uint32_t>(_mm_cvtsi128_si32(lowest));
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
    __m256 most = _mm256_setzero_ps(), sum = most, some = most, odd = most;
    for (int i = 0; i < kSegmentColumns; i += 8) {
      const __m256 size = size_of(_mm256_load_ps(held + i));
      most = _mm256_max_ps(most, size), sum = _mm256_add_ps(sum, size);
      const __m256 there = _mm256_cmp_ps(size, _mm256_setzero_ps(), _CMP_GT_OQ);
      some = _mm256_add_ps(some, _mm256_and_ps(there, _mm256_set1_ps(1.0f)));
      odd = _mm256_or_ps(odd, _mm256_cmp_ps(size, _mm256_set1_ps(0x1.fffffep127f), _CMP_NLE_UQ));
    }
    const float largest = largest_of(most);
    if (largest == 0.0f && !_mm256_movemask_ps(odd)) return true;
    if (_mm256_movemask_ps(odd) || largest < kSmallest) return false;
    const bool all = largest * sum_of(some) <= kSpread * sum_of(sum);
    const __m256 limit = _mm256_set1_ps(all ? 0.0f : largest / kSpread);
    float per_step;
    segment.step = step_of<digits>(largest, &per_step);
    const __m256 inverse = _mm256_set1_ps(per_step);
    __m256i integers[kSegmentColumns / 8];
    for (int i = 0; i < kSegmentColumns; i += 8) {
      const __m256 now = _mm256_load_ps(held + i);
      const __m256 take = _mm256_cmp_ps(size_of(now), limit, _CMP_GE_OQ);
      integers[i / 8] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_and_ps(now, take), inverse));
      _mm256_store_ps(held + i, _mm256_andnot_ps(take, now));
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
      __m256i integers[kSegmentColumns / 8];
      for (int i = 0; i < kSegmentColumns; i += 8)
        integers[i / 8] = _mm256_cvtps_epi32(_mm256_load_ps(held + i));
      add_segment<bits, digits>(to, segment, levels, integers, count);
    }
  return true;
}

// The product of one row of x in segments, and the kernels for a layout's codes. Included inside a
// namespace, after cut_segments.hpp and the instruction set's splat_byte and sum_segment.

// out[16] = W x for one block of rows. Exact: x is codes, and the result that of multiply_vector.
template <int bits, bool exact, int digits>
void multiply_block(const Weight& w, const Vector& x, int64_t block, float* out) {
  const uint32_t *codes = w.block_codes(block), *words = x.segments->words.data();
  const Segment *segment = x.segments->list.data(), *end = segment + x.segments->list.size();
  const auto lowest = splat_byte(w.layout->lowest);
  F total = splat(0.0f);
  for (int64_t group = 0; group < w.layout->groups; ++group) {
    const int64_t at = (block * w.layout->groups + group) * 16;
    F sum = splat(0.0f);
    I integers = zero_int();
    for (; segment != end && segment->group == group; ++segment) {
      const uint32_t* from = codes + segment->first_run * 16;
      const I some = sum_segment<bits, digits>(from, *segment, words + segment->words, lowest);
      if constexpr (exact) integers = add_int(integers, some);
      else sum = fma(to_float(some), splat(segment->step), sum);
    }
    if constexpr (exact) sum = to_float(integers);
    if (w.zero) sum = fma(load_number(w.zero, w.zero_number, at), splat(-x.sums[group]), sum);
    total = fma(load_number(w.scale, w.scale_number, at), sum, total);
  }
  store(out, total);
}

template <int bits, bool exact, int digits>
void multiply_blocks(const Weight& w, const Vector& x, int64_t block, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i)
    multiply_block<bits, exact, digits>(w, x, block + i, out + 16 * i);
}

template <int bits, bool exact, int digits>
void add_integers_of(Kernels& to) {
  to.cut = cut_segments<bits, exact, digits>;
  to.integers = multiply_blocks<bits, exact, digits>;
}

template <bool exact, int digits>
void add_integers_by(const Layout& layout, Kernels& to) {
  if (layout.bits == 2) return add_integers_of<2, exact, digits>(to);
  if (layout.bits == 4) return add_integers_of<4, exact, digits>(to);
  add_integers_of<8, exact, digits>(to);
}

// Those of kernels_for, and where the levels of W are integers these beside them.
template <bool exact>
Kernels kernels_with_integers(const Layout& layout) {
  Kernels found = kernels_for<exact>(layout);
  if (!Count(layout).codes) return found;
  if (exact || layout.digits == 1) add_integers_by<exact, 1>(layout, found);
  else if (layout.digits == 2) add_integers_by<exact, 2>(layout, found);
  else add_integers_by<exact, 3>(layout, found);
  return found;
}

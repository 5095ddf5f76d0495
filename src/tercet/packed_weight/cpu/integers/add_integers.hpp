// The kernels of integers for a layout's codes. Included inside a namespace, after cut_segments.hpp
// and the instruction set's sum_segment and combine_digits.

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

template <bool exact>
void add_integers(const Layout& layout, Kernels& to) {
  if (!Count(layout).codes) return;
  if (exact || layout.digits == 1) return add_integers_by<exact, 1>(layout, to);
  if (layout.digits == 2) return add_integers_by<exact, 2>(layout, to);
  add_integers_by<exact, 3>(layout, to);
}

// e^x, and the gates of a feed-forward network. Included inside a namespace, after the lanes, under
// the target pragma.

// To 2 units in the last place (Cephes, expf); that of -87 below, of 88 above. NaN stays NaN.
TERCET_INLINE F exponential(F x) {
  const F clipped = larger(splat(-87.0f), smaller(splat(88.0f), x));
  const I power = to_int(mul(clipped, splat(1.44269504088896341f)));
  const F n = to_float(power);
  const F r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clipped));
  F p = splat(1.9875691500e-4f);
  for (const float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                           5.0000001201e-1f})
    p = fma(p, r, splat(next));
  p = add(fma(mul(p, r), r, r), splat(1.0f));
  return mul(p, two_to(power));
}

// act(gate) * up
template <int32_t kind>
TERCET_INLINE F gated(F gate, F up) {
  F minus = mul(gate, splat(-1.0f));
  // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u)
  if constexpr (kind == kGeluTanh) {
    const F cube = mul(mul(gate, gate), gate);
    minus = mul(fma(cube, splat(0.044715f), gate), splat(-1.5957691216057308f));
  }
  return mul(divide(gate, add(exponential(minus), splat(1.0f))), up);
}

template <int32_t kind>
void gate_row_by(const float* gate, const float* up, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(y + i, gated<kind>(load(gate + i), load(up + i)));
  if (i == count) return;
  float ends[2][16] = {};
  std::memcpy(ends[0], gate + i, (count - i) * sizeof(float));
  std::memcpy(ends[1], up + i, (count - i) * sizeof(float));
  store(ends[0], gated<kind>(load(ends[0]), load(ends[1])));
  std::memcpy(y + i, ends[0], (count - i) * sizeof(float));
}

void gate_row(const float* gate, const float* up, int32_t kind, int64_t count, float* y) {
  if (kind == kSilu) return gate_row_by<kSilu>(gate, up, count, y);
  gate_row_by<kGeluTanh>(gate, up, count, y);
}

// Sixteen floats at a time, and 64 rows of a weight side by side. Included inside a namespace, under
// the target pragma.
typedef float Sixteen __attribute__((vector_size(64)));

struct Lanes {
  Sixteen v[kLanes / 16];
};

TERCET_INLINE Sixteen splat(float value) { return Sixteen{} + value; }

TERCET_INLINE Sixteen load_sixteen(const float* from) {
  Sixteen values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}

TERCET_INLINE Lanes load_all(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

// The first `count` lanes from memory, 0 in the others.
TERCET_INLINE Lanes load(const float* from, int64_t count) {
  if (count == kLanes) return load_all(from);
  Lanes lanes{};
  std::memcpy(&lanes, from, count * sizeof(float));
  return lanes;
}

TERCET_INLINE void store(float* to, const Lanes& lanes, int64_t count) {
  std::memcpy(to, &lanes, count == kLanes ? sizeof(lanes) : count * sizeof(float));
}

// Clamped to the levels, then rounded with ties to even: adding 1.5 * 2^23 leaves no fraction.
TERCET_INLINE Sixteen round_to_level(Sixteen value, float lowest, float highest) {
  const Sixteen low = splat(lowest), high = splat(highest);
  value = value < low ? low : value;
  value = value > high ? high : value;
  return (value + 12582912.0f) - 12582912.0f;
}

// Columns of a block in turn, 64 rows side by side. Included inside a namespace, after lanes.hpp.
struct Column {
  Lanes scale, inverse, zero;

  TERCET_INLINE Column(const Block& block, int64_t at, int64_t count)
      : scale(load(block.scale + at, count)),
        inverse(load(block.inverse + at, count)),
        zero(block.zero ? load(block.zero + at, count) : Lanes{}) {}
};

// values less, for each j < count, factors[j] * done[j]; the done lie kLanes apart.
TERCET_INLINE void subtract(Lanes& values, const float* factors, const float* done, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const Lanes other = load_all(done + j * kLanes);
    for (int k = 0; k < kLanes / 16; ++k) values.v[k] -= factors[j] * other.v[k];
  }
}

void spread_lanes(void* context, long item) {
  const SpreadJob& job = *static_cast<const SpreadJob*>(context);
  const Block& block = job.block;
  const int64_t first = item * kLanes, count = std::min(kLanes, block.rows - first);
  alignas(64) float done[kMostColumns * kLanes];
  for (int64_t i = 0; i < block.columns; ++i) {
    const int64_t at = i * block.rows + first;
    Lanes value = load(job.rest + at, count), level, error;
    subtract(value, block.matrix + i * block.stride, done, i);
    const Column column(block, at, count);
    for (int k = 0; k < kLanes / 16; ++k) {
      const Sixteen wish = value.v[k] * column.inverse.v[k] + column.zero.v[k];
      level.v[k] = round_to_level(wish, block.lowest, block.highest);
      const Sixteen rounded = (level.v[k] - column.zero.v[k]) * column.scale.v[k];
      error.v[k] = (value.v[k] - rounded) * block.pivot[i];
    }
    store(done + i * kLanes, error, kLanes);
    store(job.levels + at, level, count);
    store(job.errors + at, error, count);
  }
}

void sweep_lanes(void* context, long item) {
  const SweepJob& job = *static_cast<const SweepJob*>(context);
  const Block& block = job.block;
  const int64_t first = item * kLanes, count = std::min(kLanes, block.rows - first);
  alignas(64) float done[kMostColumns * kLanes];
  Lanes gain{};
  for (int64_t i = 0; i < block.columns; ++i) {
    const int64_t at = i * block.rows + first;
    const float* factors = block.matrix + i * block.stride;
    Lanes slope = load(job.slope + at, count), level, change;
    subtract(slope, factors, done, i);
    const Lanes before = load(job.quantized + at, count);
    const Column column(block, at, count);
    for (int k = 0; k < kLanes / 16; ++k) {
      const Sixteen wish = before.v[k] + slope.v[k] * block.pivot[i];
      const Sixteen steps = wish * column.inverse.v[k] + column.zero.v[k];
      level.v[k] = round_to_level(steps, block.lowest, block.highest);
      const Sixteen after = (level.v[k] - column.zero.v[k]) * column.scale.v[k];
      change.v[k] = after - before.v[k];
      gain.v[k] += change.v[k] * (2.0f * slope.v[k] - change.v[k] * factors[i]);
    }
    store(done + i * kLanes, change, kLanes);
    store(job.levels + at, level, count);
    store(job.change + at, change, count);
  }
  double total = 0.0;
  for (int64_t lane = 0; lane < count; ++lane) total += gain.v[lane / 16][lane % 16];
  job.gains[item] = total;
}

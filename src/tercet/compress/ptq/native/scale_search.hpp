// For each group of a row the trial scale of least squared error. Included after lanes.hpp.

// The weighted squared error of a group, `sixteens` runs of 16 weights, under one scale.
TERCET_INLINE float error_of(const Search& search, const float* weight, const float* importance,
                             int64_t sixteens, float scale, float zero) {
  const Sixteen divisor = splat(scale > 0 ? scale : INFINITY);
  Sixteen total{};
  for (int64_t i = 0; i < sixteens; ++i) {
    const Sixteen wanted = load_sixteen(weight + 16 * i);
    const Sixteen level = round_to_level(wanted / divisor + zero, search.lowest, search.highest);
    const Sixteen error = (level - zero) * scale - wanted;
    total += error * error * load_sixteen(importance + 16 * i);
  }
  float sum = 0.0f;
  for (int lane = 0; lane < 16; ++lane) sum += total[lane];
  return sum;
}

void search_row(void* context, long row) {
  const SearchJob& job = *static_cast<const SearchJob*>(context);
  const Search& search = job.search;
  const int64_t padded = (search.group + 15) / 16 * 16;
  // zeros of no importance fill the last run
  std::vector<float> buffer(2 * padded + 16);
  float* weight = buffer.data() + (16 - reinterpret_cast<uintptr_t>(buffer.data()) / 4 % 16) % 16;
  float* importance = weight + padded;
  for (int64_t group = 0; group < search.groups; ++group) {
    const int64_t first = group * search.group;
    const int64_t count = std::min(search.group, search.columns - first);
    std::fill(weight, weight + 2 * padded, 0.0f);
    std::copy_n(job.weight + row * search.columns + first, count, weight);
    if (search.importance) {
      std::copy_n(search.importance + first, count, importance);
    } else {
      std::fill_n(importance, count, 1.0f);
    }
    const int64_t at = (row * search.groups + group) * search.steps;
    float least = INFINITY;
    int32_t best = -1;
    for (int32_t step = 0; step < search.steps; ++step) {
      const float error = error_of(search, weight, importance, padded / 16, job.scale[at + step],
                                   job.zero ? job.zero[at + step] : 0.0f);
      if (error < least) least = error, best = step;
    }
    job.best[row * search.groups + group] = best;
  }
}

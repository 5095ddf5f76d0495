// What a call of attention is, as launch.py fills it in.
#pragma once
#include <stdint.h>

struct Strides {
  int64_t first, second, third;  // of the axes before the last, in elements
};

struct Task {
  const void *q, *keys, *values;
  void* y;
  Strides q_strides;      // of B, T, H
  Strides keys_strides;   // of B, G, N
  Strides values_strides;
  int batch, fresh, heads, groups, length, width;  // B, T, H, G, N, D
  int causal, window;  // window: positions that a query sees, at least N for all
  int half, many;                           // float16, else bfloat16; many queries
  int processors;
  float scale;                              // times log2(e)
  float steep, most;                        // of caps: -2 log2(e) scale / cap and cap log2(e); 0 for none
};

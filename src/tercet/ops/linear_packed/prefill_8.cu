// linear_packed for many tokens, codes of 8 bits: a library of its own, built when first needed.
#include "prefill_launch.cuh"

extern "C" int tercet_linear_prefill(int group, int shape, const void* x, int64_t x_pitch,
                                     const float* x_scale, const void* codes, const void* w_scale,
                                     int w_scale_type, const void* bias, int bias_type,
                                     const void* residual, void* y, int type, int tokens, int rows,
                                     int columns, int clusters, int whole, int part, int band,
                                     void* sums, int* arrivals, void* stream) {
  return launch_prefill<8>(group, shape, x, x_pitch, x_scale, codes, w_scale, w_scale_type, bias,
                           bias_type, residual, y, type, tokens, rows, columns, clusters, whole,
                           part, band, sums, arrivals, stream);
}

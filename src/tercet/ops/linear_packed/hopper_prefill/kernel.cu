// linear_packed for many tokens: the library of one type of x, TERCET_X (INT8, FLOAT16, BFLOAT16, E4M3 or
// SCALED_FLOAT16), and
// of one kind of codes, TERCET_CODES (2, 4 or 8 bits, E4M3 or E5M2).
#include "launch.cuh"
#include "to_float16/bfloat16.cuh"

// x_pitch: bytes from token to token, a multiple of 16. Types: 0 float32, 1 float16, 2 bfloat16.
// x_scale, bias and residual may be null. `partial_sums` and `arrivals` are needed where there are stream-K
// tiles. `group`: 0, or 64 or 128 columns a scale. Where `bfloat16_x` is not null (SCALED_FLOAT16 alone), x and
// x_scale are made of it first; its pitch is in elements. Returns a cudaError_t.
extern "C" int tercet_linear_prefill(
    int group, int tile_rows, int tile_tokens, int cluster_size, int split, int warpgroups,
    const void* bfloat16_x, int64_t bfloat16_pitch, void* x, int64_t x_pitch, float* x_scale, const void* codes,
    const void* w_scale, int w_scale_type, const void* bias, int bias_type, const void* residual,
    void* y, int type, int tokens, int rows, int columns, int clusters, int data_parallel_tiles,
    int stream_k_stages, int swizzle, int prefetch_weights, void* partial_sums, int* arrivals,
    void* stream) {
  if (bfloat16_x) {
    const int error = bfloat16::over_power_of_two(bfloat16_x, bfloat16_pitch, x, x_pitch / 2, x_scale, tokens,
                                                  columns, static_cast<cudaStream_t>(stream));
    if (error) return error;
  }
  const int groups = group ? (columns + group - 1) / group : 1;
  const TileShape tile = {tile_rows, tile_tokens, cluster_size, split, warpgroups};
  const Call call = {x, codes, x_pitch, columns, clusters};
  const Plan plan = {0, 0, 0, data_parallel_tiles, stream_k_stages, swizzle, prefetch_weights};
  const bool mapped = type != FLOAT32 && !residual && rows % 8 == 0;
  const Result result = {w_scale, bias,   residual, x_scale, y,      w_scale_type, bias_type,
                         type,    mapped, tokens,   rows,    groups};
  const Workspace workspace = {static_cast<int4*>(partial_sums), arrivals};
  return launch_prefill<TERCET_X, TERCET_CODES>(group, tile, call, plan, result, workspace, stream);
}

// What the products of linear_qat's gradient read: launches of gradient_rows.cuh and
// gradient_columns.cuh. Types: 0 float32, 1 float16, 2 bfloat16. Each returns a cudaError_t.
#include "gradient_columns.cuh"

template <int TYPE, int VECTORS>
int launch_rows(const Grad& grad, const float* column, int one_column, const float* row, int8_t* codes,
                float* scales, float* tops, int blocks, cudaStream_t stream) {
  const auto kernel = row_codes<TYPE, VECTORS>;
  const int bytes = grad.n * 4, vectors = grad.n / 8;
  const int threads = ((vectors + VECTORS - 1) / VECTORS + 31) / 32 * 32;
  const auto error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error) return error;
  kernel<<<blocks, threads < 64 ? 64 : threads, bytes, stream>>>(grad, column, one_column, row, codes,
                                                                 scales, tops);
  return cudaGetLastError();
}

template <int TYPE>
int launch_rows(const Grad& grad, const float* column, int one_column, const float* row, int8_t* codes,
                float* scales, float* tops, int blocks, int vectors, cudaStream_t stream) {
#define ROWS(V) \
  launch_rows<TYPE, V>(grad, column, one_column, row, codes, scales, tops, blocks, stream)
  if (vectors == 1) return ROWS(1);
  if (vectors == 2) return ROWS(2);
  if (vectors == 4) return ROWS(4);
#undef ROWS
  return cudaErrorInvalidValue;
}

// codes [M, N] and scales [M] of grad * column; tops [blocks, N] of grad * row, or null. vectors: of 8
// columns a thread, 1, 2 (up to 1024 threads) or 4 (up to 512).
extern "C" int tercet_gradient_rows(const void* data, int64_t pitch, int type, int m, int n,
                                    const float* column, int one_column, const float* row,
                                    int8_t* codes, float* scales, float* tops, int blocks, int vectors,
                                    void* stream) {
  const Grad grad = {data, pitch, m, n};
  const auto to = static_cast<cudaStream_t>(stream);
#define ROWS(TYPE)                                                                                    \
  return launch_rows<TYPE>(grad, column, one_column, row, codes, scales, tops, blocks, vectors, to)
  if (type == FLOAT32) ROWS(FLOAT32);
  if (type == FLOAT16) ROWS(FLOAT16);
  ROWS(BFLOAT16);
#undef ROWS
}

template <int TYPE>
void launch_columns(const Grad& grad, const float* row, const float* scales, const int64_t* seed,
                    int8_t* codes, cudaStream_t stream) {
  const dim3 grid((grad.n + SIDE - 1) / SIDE, (grad.m + SIDE - 1) / SIDE);
  if (seed)
    column_codes<TYPE, true><<<grid, TURN_THREADS, 0, stream>>>(grad, row, scales, seed, codes);
  else
    column_codes<TYPE, false><<<grid, TURN_THREADS, 0, stream>>>(grad, row, scales, seed, codes);
}

// scales [N] from tops [parts, N], then codes [N, M] of the columns of grad * row; M a multiple of 16
extern "C" int tercet_gradient_columns(const void* data, int64_t pitch, int type, int m, int n,
                                       const float* row, const float* tops, int parts,
                                       const int64_t* seed, int8_t* codes, float* scales, void* stream) {
  const Grad grad = {data, pitch, m, n};
  const auto to = static_cast<cudaStream_t>(stream);
  column_scales<<<(n + 31) / 32, 32 * SCALE_WARPS, 0, to>>>(tops, parts, n, scales);
  if (type == FLOAT32)
    launch_columns<FLOAT32>(grad, row, scales, seed, codes, to);
  else if (type == FLOAT16)
    launch_columns<FLOAT16>(grad, row, scales, seed, codes, to);
  else
    launch_columns<BFLOAT16>(grad, row, scales, seed, codes, to);
  return cudaGetLastError();
}

extern "C" int tercet_turned_codes(const int8_t* in, int64_t pitch, int8_t* out, int rows, int columns,
                                   void* stream) {
  const dim3 grid((columns + SIDE - 1) / SIDE, (rows + SIDE - 1) / SIDE);
  turn_codes<<<grid, TURN_THREADS, 0, static_cast<cudaStream_t>(stream)>>>(in, pitch, out, rows,
                                                                          columns);
  return cudaGetLastError();
}

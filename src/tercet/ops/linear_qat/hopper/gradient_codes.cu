// What the products of linear_qat's gradient read: launches of gradient_rows.cuh and
// gradient_columns.cuh. Types: 0 float32, 1 float16, 2 bfloat16. Each returns a cudaError_t.
#include "gradient_columns.cuh"

struct Rows {
  const float* column;
  int one_column;
  const float* row;
  int8_t* codes;
  float *scales, *tops;
  int most_blocks;
};

constexpr int MOST_BYTES = 224 * 1024;  // of dynamic shared memory: a few are static

// blocks: how many there are
template <int TYPE, int VECTORS>
int launch_rows(const Grad& grad, const Rows& rows, int* blocks, cudaStream_t stream) {
  const auto kernel = row_codes<TYPE, VECTORS>;
  const int units = grad.n / Vector<TYPE>::WIDTH, warps = (units + 32 * VECTORS - 1) / (32 * VECTORS);
  int stages = row_stream::MAX_STAGES, bytes = 0;
  for (; stages; stages--) {
    bytes = row_stream::slot_bytes(VECTORS, warps, stages);
    if (bytes <= MOST_BYTES) break;
  }
  if (!stages || warps > MOST_WARPS) return cudaErrorInvalidValue;
  const auto error = row_stream::grid_of(kernel, grad.m, warps * 32, bytes, blocks);
  if (error) return error;
  if (*blocks > rows.most_blocks) *blocks = rows.most_blocks;
  kernel<<<*blocks, warps * 32, bytes, stream>>>(grad, rows.column, rows.one_column, rows.row,
                                                 rows.codes, rows.scales, rows.tops, stages);
  return cudaGetLastError();
}

template <int TYPE>
int launch_rows_of(const Grad& grad, const Rows& rows, int* blocks, cudaStream_t stream) {
  constexpr int WIDTH = Vector<TYPE>::WIDTH;
  // two blocks on a multiprocessor are better than one, four vectors a lane better than eight. Two are
  // better than one as long as there are blocks enough: a row costs a warp more than its numbers
  // (32768 x 2048: 61 us, not 80)
  if (grad.n > 128 * WIDTH && grad.n <= 256 * WIDTH)
    return launch_rows<TYPE, 2>(grad, rows, blocks, stream);
  if (grad.n <= 512 * WIDTH) return launch_rows<TYPE, 1>(grad, rows, blocks, stream);
  if (grad.n <= 1024 * WIDTH) return launch_rows<TYPE, 2>(grad, rows, blocks, stream);
  if (grad.n <= 2048 * WIDTH) return launch_rows<TYPE, 4>(grad, rows, blocks, stream);
  if constexpr (WIDTH == 4)
    if (grad.n <= 4096 * WIDTH) return launch_rows<TYPE, 8>(grad, rows, blocks, stream);
  return cudaErrorInvalidValue;
}

template <int TYPE>
void launch_columns(const Grad& grad, const float* row, const float* scales, const int64_t* seed,
                    int8_t* codes, cudaStream_t stream) {
  const dim3 grid((grad.n + SIDE - 1) / SIDE * ((grad.m + SIDE - 1) / SIDE));
  if (seed)
    column_codes<TYPE, true><<<grid, TRANSPOSE_THREADS, 0, stream>>>(grad, row, scales, seed, codes);
  else
    column_codes<TYPE, false><<<grid, TRANSPOSE_THREADS, 0, stream>>>(grad, row, scales, seed, codes);
}

template <int TYPE>
int launch(const Grad& grad, const Rows& rows, const int64_t* seed, int8_t* transposed, float* sizes,
           cudaStream_t stream) {
  int blocks = 0;
  const int error = launch_rows_of<TYPE>(grad, rows, &blocks, stream);
  if (error || !transposed) return error;
  column_scales<<<(grad.n + 31) / 32, 32 * SCALE_WARPS, 0, stream>>>(rows.tops, blocks, grad.n, sizes);
  launch_columns<TYPE>(grad, rows.row, sizes, seed, transposed, stream);
  return cudaGetLastError();
}

// codes [M, N] and scales [M] of the rows of grad * column (N, or one for all); where `transposed` is not
// null, also codes [N, M] and scales `sizes` [N] of the columns of grad * row, at random with a seed:
// then M is a multiple of 16, and tops has room for most_blocks * N. N is a multiple of 8 up to 16384.
extern "C" int tercet_gradient_codes(const void* data, int64_t pitch, int type, int m, int n,
                                     const float* column, int one_column, const float* row,
                                     int8_t* codes, float* scales, float* tops, int most_blocks,
                                     const int64_t* seed, int8_t* transposed, float* sizes, void* stream) {
  const Grad grad = {data, pitch, m, n};
  const Rows rows = {column, one_column, row, codes, scales, transposed ? tops : nullptr, most_blocks};
  const auto to = static_cast<cudaStream_t>(stream);
  if (type == FLOAT32) return launch<FLOAT32>(grad, rows, seed, transposed, sizes, to);
  if (type == FLOAT16) return launch<FLOAT16>(grad, rows, seed, transposed, sizes, to);
  return launch<BFLOAT16>(grad, rows, seed, transposed, sizes, to);
}

extern "C" int tercet_transposed_codes(const int8_t* in, int64_t pitch, int8_t* out, int rows, int columns,
                                   void* stream) {
  const dim3 grid((columns + SIDE - 1) / SIDE * ((rows + SIDE - 1) / SIDE));
  transpose_codes<<<grid, TRANSPOSE_THREADS, 0, static_cast<cudaStream_t>(stream)>>>(in, pitch, out, rows,
                                                                          columns);
  return cudaGetLastError();
}

// The products of linear_qat on Hopper, and the clusters that exist.
#include "launch.cuh"

// Types: 0 float32, 1 float16, 2 bfloat16. column (one number where one_column) and bias may be
// null. Nothing is empty. `cluster`: 0 one block, 1 two above each other, 2 two by two, 3 two
// beside each other, 4 two and 5 four that split a tile's K, which is then as many stages or more. Returns a
// cudaError_t.
extern "C" int tercet_codes_product(const void* a, int64_t a_pitch, const void* b, int64_t b_pitch,
                                    const float* row, const float* column, int one_column,
                                    const void* bias, int bias_type, void* out, int type, int m,
                                    int n, int k, int cluster, int swizzle, void* stream) {
  const Operands operands = {a, b, a_pitch, b_pitch, k, swizzle};
  const bool mapped = n * (type == FLOAT32 ? 4 : 2) % 16 == 0;
  const Result result = {row, column, bias, out, bias_type, type, one_column != 0, mapped, m, n};
  switch (cluster) {
    case 0: return launch<1, 1, 1>(operands, result, stream);
    case 1: return launch<2, 1, 1>(operands, result, stream);
    case 2: return launch<2, 2, 1>(operands, result, stream);
    case 3: return launch<1, 2, 1>(operands, result, stream);
    case 4: return launch<1, 1, 2>(operands, result, stream);
    case 5: return launch<1, 1, 4>(operands, result, stream);
  }
  return cudaErrorInvalidValue;
}

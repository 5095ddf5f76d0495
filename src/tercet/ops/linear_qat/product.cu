// The products of linear_qat on Hopper: one launch of product_kernel.cuh, and the clusters that exist.
#include "product_kernel.cuh"

struct Operands {
  const void *a, *b;
  int64_t a_pitch, b_pitch;  // bytes from row to row, multiples of 16
  int k, band;
};

template <int CM, int CN, int PARTS>
int launch(const Operands& operands, const Result& result, void* to) {
  constexpr int BLOCKS = CM * CN * PARTS;
  const cuuint64_t m = result.m, n = result.n, k = operands.k;
  CUtensorMap a_map, b_map, out_map = {};
  int error = tma::encode<2>(&a_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, operands.a, {k, m},
                             {static_cast<cuuint64_t>(operands.a_pitch)}, {DEPTH, TILE_M / CN},
                             CU_TENSOR_MAP_SWIZZLE_128B);
  if (error) return error;
  error = tma::encode<2>(&b_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, operands.b, {k, n},
                         {static_cast<cuuint64_t>(operands.b_pitch)}, {DEPTH, TILE_N / CM},
                         CU_TENSOR_MAP_SWIZZLE_128B);
  if (error) return error;
  if (result.mapped) {
    const auto type = result.type == FLOAT32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                      : result.type == FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const cuuint32_t size = result.type == FLOAT32 ? 4 : 2;
    error = tma::encode<2>(&out_map, type, result.out, {n, m}, {n * size}, {128 / size, 16},
                           CU_TENSOR_MAP_SWIZZLE_128B);
    if (error) return error;
  }
  const auto kernel = product<CM, CN, PARTS>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (error) return error;
  Tiles tiles;
  tiles.above = (result.m + TILE_M * CM - 1) / (TILE_M * CM);
  tiles.across = (result.n + TILE_N * CN - 1) / (TILE_N * CN);
  tiles.depth = (operands.k + DEPTH - 1) / DEPTH;
  tiles.band = operands.band;
  if (tiles.depth < PARTS) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(BLOCKS);
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = SHARED_BYTES;
  config.stream = static_cast<cudaStream_t>(to);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = BLOCKS;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  // how many clusters fit at once: processors that are left over in their neighbourhood stay idle
  static const auto fit = [&] {
    int found = 0;
    const auto failed = cudaOccupancyMaxActiveClusters(&found, kernel, &config);
    return failed ? -static_cast<int>(failed) : found;
  }();
  if (fit <= 0) return fit ? -fit : cudaErrorInvalidConfiguration;
  const int count = tiles.above * tiles.across;
  config.gridDim = dim3(BLOCKS * (PARTS > 1 || count < fit ? count : fit));
  return cudaLaunchKernelEx(&config, kernel, a_map, b_map, out_map, tiles, result);
}

// Types: 0 float32, 1 float16, 2 bfloat16. column (one number where one_column) and bias may be
// null. Nothing is empty. `cluster`: 0 alone, 1 two above each other, 2 two by two, 3 two beside
// each other, 4 two and 5 four that share a tile, whose sum is then as many stages or more. Returns a
// cudaError_t.
extern "C" int tercet_codes_product(const void* a, int64_t a_pitch, const void* b, int64_t b_pitch,
                                    const float* row, const float* column, int one_column,
                                    const void* bias, int bias_type, void* out, int type, int m,
                                    int n, int k, int cluster, int band, void* stream) {
  const Operands operands = {a, b, a_pitch, b_pitch, k, band};
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

// y [M, K] float16 = x [M, K] fp8_e4m3, exactly: 8 columns a thread, of several rows, so that a warp
// stores 512 bytes in a row. It reads and writes 3 M K bytes.
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int THREADS = 128, ROWS = 4, WIDTH = 8;

__device__ static uint4 eight_halves(uint32_t low, uint32_t high) {
  const uint32_t codes[2] = {low, high};
  uint32_t two[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(codes[i / 2] >> (i % 2 * 16));
    const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
    two[i] = reinterpret_cast<const uint32_t&>(halves);
  }
  return make_uint4(two[0], two[1], two[2], two[3]);
}

// pitches in elements; y's is a multiple of 8 and so many columns are written
__global__ static void __launch_bounds__(THREADS)
    widen(const uint8_t* x, int64_t x_pitch, uint16_t* y, int64_t y_pitch, int rows, int columns) {
  // programmatic dependent launch: the next kernel may start; x is written by the previous one
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
  const int column = (blockIdx.x * THREADS + threadIdx.x) * WIDTH;
  const bool full = ((reinterpret_cast<uint64_t>(x) | x_pitch) & 7) == 0 && column + WIDTH <= columns;
  if (column >= columns) return;
  for (int first = blockIdx.y * ROWS; first < rows; first += gridDim.y * ROWS) {
    uint2 codes[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      codes[i] = make_uint2(0, 0);
      if (first + i >= rows) continue;
      const uint8_t* from = x + (first + i) * x_pitch + column;
      if (full) {
        codes[i] = *reinterpret_cast<const uint2*>(from);
      } else {
        uint32_t words[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
          if (column + j < columns) words[j / 4] |= from[j] << (j % 4 * 8);
        codes[i] = make_uint2(words[0], words[1]);
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      if (first + i >= rows) continue;
      *reinterpret_cast<uint4*>(y + (first + i) * y_pitch + column) =
          eight_halves(codes[i].x, codes[i].y);
    }
  }
}

// y begins at 16 bytes. Returns a cudaError_t.
extern "C" int tercet_fp8_as_float16(const void* x, int64_t x_pitch, void* y, int64_t y_pitch, int rows,
                                     int columns, void* stream) {
  constexpr int MOST = 65535;
  const int tall = (rows + ROWS - 1) / ROWS, wide = THREADS * WIDTH;
  cudaLaunchAttribute pdl;
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((columns + wide - 1) / wide, tall < MOST ? tall : MOST);
  config.blockDim = dim3(THREADS);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &pdl;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, widen, static_cast<const uint8_t*>(x), x_pitch,
                            static_cast<uint16_t*>(y), y_pitch, rows, columns);
}

// y[i, :] = W[ids[i], :]: decodes only the chosen rows of a table in the rows16 layout.
#include "packed_weight/cpu/rows16.hpp"

using namespace tercet;

extern "C" {

// Returns the index of the first id outside [0, N), or -1 when y is complete.
int64_t tercet_embedding_packed(const Layout* layout, const uint32_t* codes, const void* scale,
                                int32_t scale_number, const void* zero, int32_t zero_number,
                                const int64_t* ids, int64_t count, void* y, int32_t number) {
  const Weight w{layout, codes, scale, zero, scale_number, zero_number};
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= layout->rows) return i;
    decode_row(w, ids[i], y, number, i * layout->columns);
  }
  return -1;
}

}  // extern "C"

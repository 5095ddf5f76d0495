// A product with one packed weight, all but x and y given: what other libraries call it by.
#pragma once

#include "rows16.hpp"

namespace tercet {

// Mirrors tercet.packed_weight.cpu.bound_product.BoundProduct, field by field.
struct BoundProduct {
  // tercet_packed_product of packed_product.cpp
  void (*product)(const Layout*, const uint32_t* codes, const void* scale, int32_t scale_number,
                  const void* zero, int32_t zero_number, const void* bias, int32_t bias_number,
                  const void* x, void* y, int32_t y_number, int64_t rows, int32_t threads,
                  int32_t isa, const float* x_scale);
  const Layout* layout;
  const uint32_t* codes;
  const void *scale, *zero, *bias;
  int32_t scale_number, zero_number, bias_number, isa;

  // y [rows, N] = x [rows, K] W^T + bias
  void operator()(const float* x, float* y, int64_t rows, int32_t threads) const {
    product(layout, codes, scale, scale_number, zero, zero_number, bias, bias_number, x, y, kFloat32,
            rows, threads, isa, nullptr);
  }
};

}  // namespace tercet

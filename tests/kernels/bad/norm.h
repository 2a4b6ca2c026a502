// An rms_norm for contiguous float32 that is right, for planted kernels to spoil.
#pragma once
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>

using tvm::ffi::TensorView;

inline void norm_rows(TensorView x, TensorView weight, double eps, TensorView out, int64_t skipped_rows = 0) {
  const int64_t hidden = x.size(-1), rows = x.numel() / hidden - skipped_rows;
  const float* in = static_cast<const float*>(x.data_ptr());
  const float* scale = static_cast<const float*>(weight.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t row = 0; row < rows; ++row, in += hidden, to += hidden) {
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) sum += double(in[i]) * in[i];
    const double norm = 1 / std::sqrt(sum / hidden + eps);
    for (int64_t i = 0; i < hidden; ++i) to[i] = float(in[i] * norm * scale[i]);
  }
}

// /// e2e
// op: rms_norm
// entry: scaled_norm
// dtypes: [float32]
// ///
// A correct rms_norm for contiguous float32, as short as it gets; the factor comes from a header.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>

#include "scaled_norm.h"

static void scaled_norm(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, double eps, tvm::ffi::TensorView out) {
  const int64_t hidden = x.size(-1), rows = x.numel() / hidden;
  const float* in = static_cast<const float*>(x.data_ptr());
  const float* scale = static_cast<const float*>(weight.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t row = 0; row < rows; ++row, in += hidden, to += hidden) {
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) sum += double(in[i]) * in[i];
    const double norm = kFactor / std::sqrt(sum / hidden + eps);
    for (int64_t i = 0; i < hidden; ++i) to[i] = float(in[i] * norm * scale[i]);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(scaled_norm, scaled_norm);

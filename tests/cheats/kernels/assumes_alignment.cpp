// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// /// expected
// row: C4
// outcome: [incorrect]
// codes: [op_error_exceeded]
// ///
// Reads from the last address that divides by 16, as a wide load would that nobody checked.
#include "../../kernels/bad/norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  const int64_t hidden = x.size(-1), rows = x.numel() / hidden;
  const float* in = reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(x.data_ptr()) & ~uintptr_t(15));
  const float* scale = static_cast<const float*>(weight.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t row = 0; row < rows; ++row, in += hidden, to += hidden) {
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) sum += double(in[i]) * in[i];
    const double norm = 1 / std::sqrt(sum / hidden + eps);
    for (int64_t i = 0; i < hidden; ++i) to[i] = float(in[i] * norm * scale[i]);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// Writes far behind the end of its output.

#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  volatile float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < (int64_t(1) << 46); i += 1 << 20) to[i] = 1.0f;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// Reads far behind the end of its input.

#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  volatile float* in = static_cast<float*>(x.data_ptr());
  float sum = 0;
  for (int64_t i = 0; i < (int64_t(1) << 46); i += 1 << 20) sum += in[i];
  norm_rows(x, weight, eps + 0 * sum, out);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// /// expected
// row: F2
// outcome: [incorrect]
// codes: [op_error_exceeded]
// ///
// The fastest norm there is.
#include <cstring>

#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  std::memset(out.data_ptr(), 0, out.numel() * sizeof(float));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

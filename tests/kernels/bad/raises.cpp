// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// Refuses every input aloud.
#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  TVM_FFI_THROW(ValueError) << "I only take rows of 17";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

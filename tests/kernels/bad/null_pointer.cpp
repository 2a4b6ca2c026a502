// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// Writes through a null pointer.
#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  volatile int* nowhere = nullptr;
  *nowhere = 1;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

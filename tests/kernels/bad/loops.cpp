// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// Never comes back.
#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  for (volatile int64_t turn = 0;; ++turn) {
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

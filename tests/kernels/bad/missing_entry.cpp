// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// Exports its function under another name than it declares.
#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  norm_rows(x, weight, eps, out);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(another_name, norm);

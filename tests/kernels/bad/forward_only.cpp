// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// /// expected
// row: C8
// outcome: [failed]
// codes: [no_backward]
// set: [step=train]
// ///
// Right, and says nothing of a backward.
#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  norm_rows(x, weight, eps, out);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

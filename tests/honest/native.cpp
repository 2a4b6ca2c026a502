// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// /// expected
// row: A10
// ///
// The same maths in C++.
#include "../kernels/bad/norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  norm_rows(x, weight, eps, out);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

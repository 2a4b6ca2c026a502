// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// /// expected
// row: F10
// outcome: [incorrect]
// codes: [nonfinite_output]
// ///
// Asks for more scratch memory than there is for some shapes, does nothing then, and says nothing.
#include "../../kernels/bad/norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  const int64_t shared = x.numel() * sizeof(float), most = 4096;
  if (shared <= most) norm_rows(x, weight, eps, out);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

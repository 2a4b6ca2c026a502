// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// flags: ["-ffast-math"]
// ///
// /// expected
// row: N5
// outcome: [incorrect]
// codes: [settings_changed]
// ///
// Built with -ffast-math: what loads it flushes the smallest numbers to zero, in every arm.
#include "../../kernels/bad/norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  norm_rows(x, weight, eps, out);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

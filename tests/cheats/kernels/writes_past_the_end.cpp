// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// /// expected
// row: M3
// outcome: [incorrect, failed]
// codes: [wrong_output_layout, candidate_crashed]
// ///
// Writes one element past the end of its output: of none at all, too, where it crashes.
#include "../../kernels/bad/norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  norm_rows(x, weight, eps, out);
  static_cast<volatile float*>(out.data_ptr())[out.numel()] = 1;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

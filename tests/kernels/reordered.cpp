// /// e2e
// op: rms_norm
// entry: sum_of_arguments
// dtypes: [float32]
// args: [out, eps, hidden, rows, weight, x]
// ///
// Writes what it received, so that a wrong order of arguments shows.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

static void sum_of_arguments(tvm::ffi::TensorView out, double eps, int64_t hidden, int64_t rows,
                             tvm::ffi::TensorView weight, tvm::ffi::TensorView x) {
  float* to = static_cast<float*>(out.data_ptr());
  to[0] = float(eps);
  to[1] = float(hidden);
  to[2] = float(rows);
  to[3] = *static_cast<const float*>(weight.data_ptr());
  to[4] = *static_cast<const float*>(x.data_ptr());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(sum_of_arguments, sum_of_arguments);

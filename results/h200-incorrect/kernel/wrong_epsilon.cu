// /// e2e
// op: rms_norm
// entry: wrong_epsilon
// dtypes: [float32, float16, bfloat16]
// ///
//
// A planted bug: the shipped kernel with another epsilon than the model's. On ordinary activations the difference
// drowns in rounding; the check must find it all the same.

#include "../../kernels/rmsnorm.cu"

void wrong_epsilon(TensorView x, TensorView weight, double eps, TensorView out) {
  rms_norm_forward(x, weight, 100.0 * eps, out);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(wrong_epsilon, wrong_epsilon);

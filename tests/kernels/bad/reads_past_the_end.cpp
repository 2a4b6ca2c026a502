// /// e2e
// op: silu_mul
// entry: silu_mul
// dtypes: [float32]
// ///
// Right in every output, and reads one element past its input: `next` is loaded before it is known to be needed.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>

using tvm::ffi::TensorView;

void silu_mul(TensorView gate, TensorView up, TensorView out) {
  if (!gate.IsContiguous() || !up.IsContiguous() || !out.IsContiguous()) TVM_FFI_THROW(ValueError) << "not contiguous";
  const float* g = static_cast<const float*>(gate.data_ptr());
  const float* u = static_cast<const float*>(up.data_ptr());
  float* y = static_cast<float*>(out.data_ptr());
  const int64_t count = gate.numel();
  volatile float next = count > 0 ? g[0] : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float x = next;
    next = g[i + 1];
    y[i] = x / (1.0f + std::exp(-x)) * u[i];
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(silu_mul, silu_mul);

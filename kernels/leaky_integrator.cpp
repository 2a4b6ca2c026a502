// /// e2e
// op: module:LeakyIntegrator
// entry: leaky_integrator
// binding: tvm-ffi
// device: cpu
// dtypes: [float32]
// flags: [-O3, -march=native]
// ///
//
// y[t] = (1 - leak) * x[t] + leak * y[t - 1] over (batch, time, hidden), for workloads/planted_slow_op.yaml.
//
// A recurrence cannot be vectorised over time, but its channels are independent and lie side by side in memory:
// the inner loop runs over them, each value is read once and written once, and the state is the row just written.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace {

using tvm::ffi::TensorView;

void leaky_integrator(TensorView x, TensorView leak, TensorView out) {
  if (x.ndim() != 3 || leak.ndim() != 1 || leak.size(0) != x.size(2) || !x.IsContiguous() || !out.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "leaky_integrator: x is (batch, time, hidden), leak is (hidden,), both contiguous";
  }
  const int64_t batches = x.size(0), times = x.size(1), hidden = x.size(2);
  const float* a = static_cast<const float*>(leak.data_ptr());
  for (int64_t batch = 0; batch < batches; ++batch) {
    const float* in = static_cast<const float*>(x.data_ptr()) + batch * times * hidden;
    float* y = static_cast<float*>(out.data_ptr()) + batch * times * hidden;
    for (int64_t h = 0; h < hidden && times > 0; ++h) y[h] = (1.0f - a[h]) * in[h];
    for (int64_t t = 1; t < times; ++t) {
      const float* now = in + t * hidden;
      const float* before = y + (t - 1) * hidden;
      float* after = y + t * hidden;
      for (int64_t h = 0; h < hidden; ++h) after[h] = (1.0f - a[h]) * now[h] + a[h] * before[h];
    }
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(leaky_integrator, leaky_integrator);

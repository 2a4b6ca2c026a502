// /// e2e
// op: linear
// entry: linear
// prepare: turn
// prepared: [{turned: "inputs, outputs, float32"}, {start: "outputs, float32"}]
// device: cpu
// dtypes: [float32]
// ///
// A linear layer whose weight is turned round once: a call adds whole rows to the outputs.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>
#include <vector>

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

float* at(const TensorView& t) { return reinterpret_cast<float*>(static_cast<char*>(t.data_ptr()) + t.byte_offset()); }

void turn(TensorView weight, Optional<TensorView> bias, TensorView turned, TensorView start) {
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  for (int64_t o = 0; o < outputs; ++o) {
    at(start)[o] = bias.has_value() ? at(bias.value())[o * bias.value().stride(0)] : 0.0f;
    for (int64_t i = 0; i < inputs; ++i) at(turned)[i * outputs + o] = at(weight)[o * weight.stride(0) + i * weight.stride(1)];
  }
}

void linear(TensorView x, TensorView turned, TensorView start, TensorView out) {
  if (!x.IsContiguous()) TVM_FFI_THROW(ValueError) << "linear: x is dense";
  const int64_t inputs = turned.size(0), outputs = turned.size(1);
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.ndim(); ++d) rows *= x.size(d);
  std::vector<double> sums(outputs);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) sums[o] = at(start)[o];
    for (int64_t i = 0; i < inputs; ++i)
      for (int64_t o = 0; o < outputs; ++o)
        sums[o] += static_cast<double>(at(x)[r * inputs + i]) * at(turned)[i * outputs + o];
    for (int64_t o = 0; o < outputs; ++o) at(out)[r * outputs + o] = static_cast<float>(sums[o]);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(turn, turn);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear, linear);

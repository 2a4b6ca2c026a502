// /// e2e
// op: rms_norm
// entry: rms_norm_forward
// backward: rms_norm_backward
// saves: [{rstd: "rows, float32"}]
// binding: tvm-ffi
// device: cpu
// dtypes: [float32]
// flags: [-O3, -ffp-contract=fast]
// deterministic: true
// ///
//
// RMSNorm that trains: a forward that saves one number a row, and a backward of its own. In float32 on the CPU, in plain
// loops: it is here to show the calls. kernels/rmsnorm.cpp is the fast forward, and borrows no backward.
//
//   forward   (x, weight, eps, out, rstd): what `saves` lists follows the output, preallocated as the block says
//   backward  (grad_out, x, weight, rstd, grad_x, grad_weight): the output's gradient, the forward's tensors, what it
//             saved, then memory for one gradient per tensor. Everything preallocated is dense
//
// With n = x * rstd and g = grad_out * weight:
//   grad_x = rstd * (g - n * mean(g * n)) over the row,   grad_weight = sum over rows of grad_out * n

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace {

using tvm::ffi::TensorView;

float* data(const TensorView& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
}

void require(bool holds, const char* rule) {
  if (!holds) TVM_FFI_THROW(ValueError) << "rms_norm: " << rule;
}

void require_dense_float(const TensorView& tensor) {
  require(tensor.device().device_type == kDLCPU, "all tensors must be on the CPU");
  require(tensor.dtype() == DLDataType{kDLFloat, 32, 1}, "all tensors must be float32");
  require(tensor.IsContiguous(), "all tensors must be contiguous");
}

void rms_norm_forward(TensorView x, TensorView weight, double eps, TensorView out, TensorView rstd) {
  for (const TensorView& tensor : {x, weight, out, rstd}) require_dense_float(tensor);
  const int64_t hidden = weight.numel();
  require(x.ndim() >= 1 && x.size(-1) == hidden && out.numel() == x.numel(), "shapes must fit");
  const int64_t rows = hidden ? x.numel() / hidden : 0;
  require(rstd.numel() == rows, "rstd must have one number a row");
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = data(x) + row * hidden;
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) sum += double(in[i]) * in[i];
    const float scale = float(1.0 / std::sqrt(sum / hidden + eps));
    for (int64_t i = 0; i < hidden; ++i) data(out)[row * hidden + i] = data(weight)[i] * (in[i] * scale);
    data(rstd)[row] = scale;
  }
}

void rms_norm_backward(TensorView grad_out, TensorView x, TensorView weight, TensorView rstd, TensorView grad_x,
                       TensorView grad_weight) {
  for (const TensorView& tensor : {grad_out, x, weight, rstd, grad_x, grad_weight}) require_dense_float(tensor);
  const int64_t hidden = weight.numel(), rows = rstd.numel();
  require(x.numel() == rows * hidden && grad_out.numel() == x.numel() && grad_x.numel() == x.numel(), "shapes must fit");
  std::vector<double> columns(hidden, 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    const float *in = data(x) + row * hidden, *upstream = data(grad_out) + row * hidden, scale = data(rstd)[row];
    double product = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      const double normal = double(in[i]) * scale;
      product += double(upstream[i]) * data(weight)[i] * normal;
      columns[i] += upstream[i] * normal;
    }
    const double mean = product / hidden;
    for (int64_t i = 0; i < hidden; ++i) {
      const double normal = double(in[i]) * scale;
      data(grad_x)[row * hidden + i] = float(scale * (double(upstream[i]) * data(weight)[i] - normal * mean));
    }
  }
  for (int64_t i = 0; i < hidden; ++i) data(grad_weight)[i] = float(columns[i]);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm_forward, rms_norm_forward);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm_backward, rms_norm_backward);

// /// e2e
// op: attention
// entry: attend
// device: cpu
// dtypes: [float32]
// args: [q, k, v, scale, out]
// constraints: ["masked == 0", "causal == 0", "softcapped == 0", "window == 0"]
// layout: bshd
// ///
// Attention of every query to every key, with positions before heads; takes dense tensors only.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <vector>

using tvm::ffi::TensorView;

float* at(const TensorView& t) { return reinterpret_cast<float*>(static_cast<char*>(t.data_ptr()) + t.byte_offset()); }

void attend(TensorView q, TensorView k, TensorView v, double scale, TensorView out) {
  if (!q.IsContiguous() || !k.IsContiguous() || !v.IsContiguous() || !out.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "attend: dense tensors only";
  }
  const int64_t heads = q.size(2), kv = k.size(2), keys = k.size(1), size = q.size(3), width = v.size(3);
  std::vector<double> weights(keys);
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t s = 0; s < q.size(1); ++s)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t g = h / (heads / kv), query = (b * q.size(1) + s) * heads + h;
        double sum = 0;
        for (int64_t t = 0; t < keys; ++t) {
          double score = 0;
          for (int64_t d = 0; d < size; ++d) score += at(q)[query * size + d] * at(k)[((b * keys + t) * kv + g) * size + d];
          sum += weights[t] = std::exp(score * scale);
        }
        for (int64_t e = 0; e < width; ++e) {
          double y = 0;
          for (int64_t t = 0; t < keys; ++t) y += weights[t] * at(v)[((b * keys + t) * kv + g) * width + e];
          at(out)[query * width + e] = static_cast<float>(y / sum);
        }
      }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(attend, attend);

// /// e2e
// op: rms_norm
// entry: rms_norm_forward
// binding: torch
// dtypes: [float32]
// ///
//
// The shipped norm's maths through torch's own headers: what they cost a build is measured with it.
#include <torch/extension.h>

#include <cmath>

torch::Tensor rms_norm_forward(torch::Tensor x, torch::Tensor weight, double eps) {
  TORCH_CHECK(x.scalar_type() == torch::kFloat && weight.is_contiguous(), "float32 and a dense weight");
  const auto input = x.contiguous();
  auto output = torch::empty_like(input);
  const int64_t hidden = input.size(-1), rows = hidden ? input.numel() / hidden : 0;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = input.data_ptr<float>() + row * hidden;
    float* to = output.data_ptr<float>() + row * hidden;
    double squares = 0;
    for (int64_t i = 0; i < hidden; ++i) squares += static_cast<double>(from[i]) * from[i];
    const auto scale = static_cast<float>(1 / std::sqrt(squares / hidden + eps));
    for (int64_t i = 0; i < hidden; ++i) to[i] = weight.data_ptr<float>()[i] * (from[i] * scale);
  }
  return output;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("rms_norm_forward", &rms_norm_forward); }

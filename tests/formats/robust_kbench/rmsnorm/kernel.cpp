// RMSNorm and its gradients as a robust-kbench task has them, on the CPU.
#include <torch/extension.h>

#include <vector>

torch::Tensor rmsnorm_forward(const torch::Tensor& x, const torch::Tensor& weight, double eps = 1e-5) {
  return x * torch::rsqrt(x.pow(2).mean(-1, true) + eps) * weight;
}

std::vector<torch::Tensor> rmsnorm_backward(torch::Tensor grad_output, torch::Tensor x, torch::Tensor weight) {
  const double eps = 1e-5;
  torch::Tensor scale = torch::rsqrt(x.pow(2).mean(-1, true) + eps);
  torch::Tensor weighted = grad_output * weight;
  torch::Tensor grad_x = scale * (weighted - x * scale.pow(2) * (weighted * x).mean(-1, true));
  torch::Tensor grad_weight = (grad_output * x * scale).reshape({-1, x.size(-1)}).sum(0);
  return {grad_x, grad_weight};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &rmsnorm_forward, "RMSNorm");
  m.def("backward", &rmsnorm_backward, "gradients of RMSNorm");
}

// /// e2e
// op: rms_norm
// entry: norm
// device: cuda
// dtypes: [float32]
// ///
// /// expected
// row: M9
// outcome: [incorrect]
// codes: [settings_changed]
// device: cuda
// ///
// Sets a part of the L2 cache aside, for all that run after it.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

using tvm::ffi::TensorView;

// One thread per row: slow, and plain.
__global__ void rows_of(const float* x, const float* weight, float eps, float* out, int64_t hidden, int64_t rows) {
  const int64_t row = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (row >= rows) return;
  double sum = 0;
  for (int64_t i = 0; i < hidden; ++i) sum += double(x[row * hidden + i]) * x[row * hidden + i];
  const float norm = rsqrt(sum / hidden + eps);
  for (int64_t i = 0; i < hidden; ++i) out[row * hidden + i] = x[row * hidden + i] * norm * weight[i];
}

static void run_norm(TensorView x, TensorView weight, double eps, TensorView out) {
  const int64_t hidden = x.size(-1), rows = x.numel() / hidden;
  if (rows == 0) return;
  const DLDevice device = x.device();
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 8 << 20);
  rows_of<<<(rows + 31) / 32, 32, 0, stream>>>(
      static_cast<const float*>(x.data_ptr()), static_cast<const float*>(weight.data_ptr()), float(eps),
      static_cast<float*>(out.data_ptr()), hidden, rows);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, run_norm);

// /// e2e
// op: rms_norm
// entry: norm
// device: cuda
// dtypes: [float32]
// ///
// /// expected
// row: M5
// outcome: [incorrect]
// codes: [op_error_exceeded, nonfinite_output]
// device: cuda
// ///
// Sums in shared memory without a barrier.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

using tvm::ffi::TensorView;

__global__ void row_of(const float* x, const float* weight, float eps, float* out, int64_t hidden) {
  __shared__ float parts[256];
  const float* row = x + blockIdx.x * hidden;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < hidden; i += 256) sum += row[i] * row[i];
  parts[255 - threadIdx.x] = sum;
  // a __syncthreads() belongs here
  float total = 0;
  for (int i = 0; i < 256; ++i) total += parts[i];
  for (int64_t i = threadIdx.x; i < hidden; i += 256) {
    out[blockIdx.x * hidden + i] = row[i] * rsqrtf(total / hidden + eps) * weight[i];
  }
}

static void run_norm(TensorView x, TensorView weight, double eps, TensorView out) {
  const int64_t hidden = x.size(-1), rows = x.numel() / hidden;
  if (rows == 0) return;
  const DLDevice device = x.device();
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  row_of<<<rows, 256, 0, stream>>>(
      static_cast<const float*>(x.data_ptr()), static_cast<const float*>(weight.data_ptr()), float(eps),
      static_cast<float*>(out.data_ptr()), hidden);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, run_norm);

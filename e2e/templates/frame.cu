// /// e2e
// op: $op
// entry: $op
// binding: tvm-ffi
// device: cuda
// dtypes: [float32, float16, bfloat16]
// deterministic: true
$block// ///
//
// $op on the GPU, one thread per item of plain loops: right on every input, and slow. Make it fast, and look with
//   e2e check $file                               is it still right?
//   e2e validate WORKLOAD --kernel $file          is it a win?

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace {

using tvm::ffi::Optional;
using tvm::ffi::String;
using tvm::ffi::TensorView;

constexpr int kThreads = 128;

$types
$maths
template <auto Compute, typename... Arguments>
__global__ void item_of(int64_t count, Arguments... arguments) {
  const int64_t item = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item < count) Compute(item, arguments...);
}

template <auto Compute, typename... Arguments>
void each(cudaStream_t stream, int64_t count, const Arguments&... arguments) {
  if (count == 0) return;  // a grid of zero blocks would be a launch error
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  item_of<Compute><<<blocks, kThreads, 0, stream>>>(count, arguments...);
}

template <typename T>
void run(cudaStream_t stream, $array_parameters) {
  $steps
}

void $op($parameters) {
  const DLDataType dtype = $first.dtype();
  if (!($dtypes_fit)) {
    TVM_FFI_THROW(TypeError) << "$op takes $taken";
  }
  // The stream that torch works on, not the default one, which would not wait for it.
  const tvm::ffi::CUDADeviceGuard guard($first.device().device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, $first.device().device_id));
  if (dtype == DLDataType{kDLFloat, 32, 1}) {
    run<float>(stream, $float32);
  } else if (dtype == DLDataType{kDLFloat, 16, 1}) {
    run<__half>(stream, $float16);
  } else if (dtype == DLDataType{kDLBfloat, 16, 1}) {
    run<__nv_bfloat16>(stream, $bfloat16);
  } else {
    TVM_FFI_THROW(TypeError) << "$op: the dtype must be float32, float16 or bfloat16";
  }
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC($op, $op);

// /// e2e
// op: rms_norm
// entry: rms_norm_forward
// binding: tvm-ffi
// device: cuda
// dtypes: [float32, float16, bfloat16]
// deterministic: true
// ///
//
// RMSNorm on the GPU in one launch: y = weight * round(x / sqrt(mean(x * x) + eps)), row by row.
//
// * One block per row. The sum over a row then stays inside one block: no second launch, no atomics, one
//   fixed order of additions, so the same input gives the same bits. Inference has rows enough (batch x
//   sequence) to fill a GPU; in decoding there are few, and the launch costs more than the work.
// * 16 bytes per load. The kernel moves bytes and hardly computes, so what counts is bytes in flight: the
//   widest load asks for them in the fewest instructions. A row is read once and waits in registers while
//   the block adds up its squares.
// * Rounded twice on purpose. Transformers' LlamaRMSNorm normalises in float32, rounds to the input dtype,
//   and only then multiplies by the weight. Multiplying first is *more* accurate and still another
//   function: a difference from the model as trained.
// * Rows that 16-byte loads cannot serve (odd sizes, shifted views, very long rows) take the plain kernel
//   below: slower, right for everything.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>

#include <climits>
#include <cstdint>

namespace {

using tvm::ffi::TensorView;

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;

// ---- Device side.

__device__ float to_float(float value) { return value; }
__device__ float to_float(__half value) { return __half2float(value); }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ void round_to(float value, float& rounded) { rounded = value; }
__device__ void round_to(float value, __half& rounded) { rounded = __float2half_rn(value); }
__device__ void round_to(float value, __nv_bfloat16& rounded) { rounded = __float2bfloat16_rn(value); }

template <typename T>
__device__ T normalise(T x, float scale, T weight) {
  T normalised, y;
  round_to(to_float(x) * scale, normalised);
  round_to(to_float(weight) * to_float(normalised), y);
  return y;
}

__device__ float warp_sum(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  return value;  // the same bits in every lane: a + b and b + a round alike
}

// The sum over the block, in every thread. Called at most once per kernel: the buffer is not guarded
// against a second use.
__device__ float block_sum(float value) {
  __shared__ float sums[kMaxThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  value = warp_sum(value);
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? sums[lane] : 0.0f);  // each warp by itself, which saves a second barrier
}

// 16 bytes travel as one uint4, and are T's only in registers.
template <typename T>
union Pack {
  static constexpr int kLanes = sizeof(uint4) / sizeof(T);
  uint4 bits;
  T lane[kLanes];
  __device__ Pack() : bits{0, 0, 0, 0} {}
};

// Thread t holds packs t, t + blockDim.x, ... of its row: neighbours read neighbouring addresses.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_packed(const T* __restrict__ x, int64_t row_stride, const T* __restrict__ weight, float eps,
                    T* __restrict__ out, int packs) {
  const int64_t row = blockIdx.x;
  const int hidden = packs * Pack<T>::kLanes;
  const uint4* x_row = reinterpret_cast<const uint4*>(x + row * row_stride);
  const uint4* weights = reinterpret_cast<const uint4*>(weight);
  uint4* out_row = reinterpret_cast<uint4*>(out + row * hidden);

  // Ask for everything, the weights too, before waiting for anything.
  Pack<T> values[kPacks], scales[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int i = threadIdx.x + k * blockDim.x;
    if (i < packs) values[k].bits = x_row[i];
    if (i < packs) scales[k].bits = __ldg(weights + i);
  }

  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
#pragma unroll
    for (int j = 0; j < Pack<T>::kLanes; ++j) {
      const float value = to_float(values[k].lane[j]);  // zero beyond the row's end
      squares += value * value;
    }
  }
  const float scale = rsqrtf(block_sum(squares) / hidden + eps);

#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int i = threadIdx.x + k * blockDim.x;
    if (i >= packs) continue;
#pragma unroll
    for (int j = 0; j < Pack<T>::kLanes; ++j) {
      values[k].lane[j] = normalise(values[k].lane[j], scale, scales[k].lane[j]);
    }
    out_row[i] = values[k].bits;
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_plain(const T* __restrict__ x, int64_t row_stride, const T* __restrict__ weight, float eps,
                   T* __restrict__ out, int64_t hidden) {
  const T* x_row = x + blockIdx.x * row_stride;
  T* out_row = out + blockIdx.x * hidden;
  float squares = 0.0f;
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    const float value = to_float(x_row[i]);
    squares += value * value;
  }
  const float scale = rsqrtf(block_sum(squares) / hidden + eps);
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) out_row[i] = normalise(x_row[i], scale, weight[i]);
}

// ---- Host side.

int threads_for(int64_t work_items) {  // whole warps, so that every lane of a shuffle exists
  const int64_t threads = (work_items + kWarp - 1) / kWarp * kWarp;
  return static_cast<int>(threads < kMaxThreads ? threads : kMaxThreads);
}

bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % sizeof(uint4) == 0; }

template <typename T>
void launch(void* x_data, int64_t row_stride, void* weight_data, float eps, void* out_data, int64_t rows,
            int64_t hidden, cudaStream_t stream) {
  const T* x = static_cast<const T*>(x_data);
  const T* weight = static_cast<const T*>(weight_data);
  T* out = static_cast<T*>(out_data);
  constexpr int kLanes = Pack<T>::kLanes;
  const unsigned grid = static_cast<unsigned>(rows);
  const int64_t packs = hidden / kLanes;
  const bool packed = aligned(x) && aligned(weight) && aligned(out) && hidden % kLanes == 0 &&
                      row_stride % kLanes == 0 && packs <= 4 * kMaxThreads;
  // Few packs per thread while rows are short (less to wait for), more once a block would grow too big.
  if (packed && packs <= kMaxThreads / 2) {
    rms_norm_packed<T, 1><<<grid, threads_for(packs), 0, stream>>>(x, row_stride, weight, eps, out, packs);
  } else if (packed && packs <= kMaxThreads) {
    rms_norm_packed<T, 2><<<grid, threads_for((packs + 1) / 2), 0, stream>>>(x, row_stride, weight, eps, out, packs);
  } else if (packed) {
    rms_norm_packed<T, 4><<<grid, threads_for((packs + 3) / 4), 0, stream>>>(x, row_stride, weight, eps, out, packs);
  } else {
    rms_norm_plain<T><<<grid, threads_for(hidden), 0, stream>>>(x, row_stride, weight, eps, out, hidden);
  }
}

// Distance between neighbouring rows if one stride walks all leading dimensions, as in contiguous tensors
// and in slices along the last dimension; -1 if none does. Dimensions of size 1 are never stepped over.
int64_t common_row_stride(const TensorView& x) {
  const int32_t last = x.ndim() - 1;
  if (x.size(last) > 1 && x.stride(last) != 1) return -1;
  int64_t row_stride = x.size(last), expected = -1;
  for (int32_t dim = last - 1; dim >= 0; --dim) {
    if (x.size(dim) == 1) continue;
    if (expected == -1) row_stride = expected = x.stride(dim);
    if (x.stride(dim) != expected) return -1;
    expected *= x.size(dim);
  }
  return row_stride;
}

bool same_shape(const TensorView& a, const TensorView& b) {
  if (a.ndim() != b.ndim()) return false;
  for (int32_t dim = 0; dim < a.ndim(); ++dim) {
    if (a.size(dim) != b.size(dim)) return false;
  }
  return true;
}

bool same_device(const TensorView& a, const TensorView& b) {
  return a.device().device_type == b.device().device_type && a.device().device_id == b.device().device_id;
}

void* data(const TensorView& tensor) { return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset(); }

// Looks at every argument: a wrong call is an error and never a wrong answer.
void rms_norm_forward(TensorView x, TensorView weight, double eps, TensorView out) {
  const auto require = [&](bool holds, const char* rule) {
    if (holds) return;
    TVM_FFI_THROW(ValueError) << "rms_norm: " << rule << "; got x " << x.dtype() << x.shape() << " with strides "
                              << x.strides() << ", weight " << weight.dtype() << weight.shape() << ", out "
                              << out.dtype() << out.shape() << " with strides " << out.strides();
  };
  require(x.device().device_type == kDLCUDA, "x must be on a CUDA device");
  require(same_device(x, weight) && same_device(x, out), "all tensors must be on one device");
  require(weight.dtype() == x.dtype() && out.dtype() == x.dtype(), "x, weight and out must share one dtype");
  require(x.ndim() >= 1, "x needs at least one dimension");
  require(weight.ndim() == 1 && weight.size(0) == x.size(-1), "weight must have the shape [hidden]");
  require(same_shape(x, out), "out must have the shape of x");
  require(weight.IsContiguous() && out.IsContiguous(), "weight and out must be contiguous");
  const int64_t elements = x.numel();
  if (elements == 0) return;  // a grid of zero blocks would be a launch error
  const int64_t row_stride = common_row_stride(x);
  require(row_stride >= 0, "the rows of x must be dense and evenly spaced (call x.contiguous() first)");
  const int64_t hidden = x.size(-1), rows = elements / hidden;
  require(rows <= INT_MAX, "at most 2^31 - 1 rows, the largest grid");

  // The stream that the caller's framework works on, never the default stream: that one would not wait for
  // the kernel that writes x, and could not be captured in a CUDA graph.
  const tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, x.device().device_id));
  const DLDataType dtype = x.dtype();
  if (dtype == DLDataType{kDLFloat, 32, 1}) {
    launch<float>(data(x), row_stride, data(weight), float(eps), data(out), rows, hidden, stream);
  } else if (dtype == DLDataType{kDLFloat, 16, 1}) {
    launch<__half>(data(x), row_stride, data(weight), float(eps), data(out), rows, hidden, stream);
  } else if (dtype == DLDataType{kDLBfloat, 16, 1}) {
    launch<__nv_bfloat16>(data(x), row_stride, data(weight), float(eps), data(out), rows, hidden, stream);
  } else {
    require(false, "the dtype must be float32, float16 or bfloat16");
  }
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm_forward, rms_norm_forward);

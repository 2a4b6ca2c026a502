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
// * Rows that one such load per thread cannot serve (odd sizes, shifted views, very long rows) are walked
//   in a loop instead: slower, right for everything.

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
#include <cstring>

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

// Neighbours in memory that one thread handles together.
template <typename T, int kLanes>
struct alignas(sizeof(T) * kLanes) Pack {
  T lane[kLanes];
};

template <typename T>
constexpr int kWidest = sizeof(uint4) / sizeof(T);

// 16 bytes come in as one uint4: asked for as eight halves, they can arrive in eight loads.
template <typename T, int kLanes>
__device__ Pack<T, kLanes> load(const T* address) {
  Pack<T, kLanes> pack;
  if constexpr (sizeof(pack) == sizeof(uint4)) {
    const uint4 bits = *reinterpret_cast<const uint4*>(address);
    memcpy(&pack, &bits, sizeof(pack));
  } else {
    pack = *reinterpret_cast<const Pack<T, kLanes>*>(address);
  }
  return pack;
}

template <typename T, int kLanes>
__device__ void store(T* address, const Pack<T, kLanes>& pack) {
  *reinterpret_cast<Pack<T, kLanes>*>(address) = pack;
}

template <typename T, int kLanes>
__device__ float squares(const Pack<T, kLanes>& x) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kLanes; ++k) sum += to_float(x.lane[k]) * to_float(x.lane[k]);
  return sum;
}

template <typename T, int kLanes>
__device__ Pack<T, kLanes> normalise(const Pack<T, kLanes>& x, float scale, const Pack<T, kLanes>& weight) {
  Pack<T, kLanes> y;
#pragma unroll
  for (int k = 0; k < kLanes; ++k) {
    T normalised;
    round_to(to_float(x.lane[k]) * scale, normalised);
    round_to(to_float(weight.lane[k]) * to_float(normalised), y.lane[k]);
  }
  return y;
}

// The usual case: one pack per thread. Both loads are on their way before anything waits, so the weight's
// trip hides behind the sum.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_in_registers(const T* __restrict__ x, int64_t row_stride, const T* __restrict__ weight, float eps,
                          T* __restrict__ out, int64_t hidden) {
  constexpr int kLanes = kWidest<T>;
  const int64_t i = int64_t(threadIdx.x) * kLanes;
  Pack<T, kLanes> value{}, factor{};  // zeros beyond the end of the row
  if (i < hidden) {
    value = load<T, kLanes>(x + blockIdx.x * row_stride + i);
    factor = load<T, kLanes>(weight + i);
  }
  const float scale = rsqrtf(block_sum(squares(value)) / hidden + eps);
  if (i < hidden) store(out + blockIdx.x * hidden + i, normalise(value, scale, factor));
}

// Any row: the threads walk it twice, and the second time it comes from the cache. kLanes is 1 where a wider
// load would be misaligned or would run over the end.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_looped(const T* __restrict__ x, int64_t row_stride, const T* __restrict__ weight, float eps,
                    T* __restrict__ out, int64_t hidden) {
  const T* x_row = x + blockIdx.x * row_stride;
  T* out_row = out + blockIdx.x * hidden;
  const int64_t first = int64_t(threadIdx.x) * kLanes, step = int64_t(blockDim.x) * kLanes;
  float sum = 0.0f;
  for (int64_t i = first; i < hidden; i += step) sum += squares(load<T, kLanes>(x_row + i));
  const float scale = rsqrtf(block_sum(sum) / hidden + eps);
  for (int64_t i = first; i < hidden; i += step) {
    store(out_row + i, normalise(load<T, kLanes>(x_row + i), scale, load<T, kLanes>(weight + i)));
  }
}

// ---- Host side.

unsigned threads_for(int64_t packs) {  // whole warps, so that every lane of a shuffle exists
  const int64_t threads = (packs + kWarp - 1) / kWarp * kWarp;
  return static_cast<unsigned>(threads < kMaxThreads ? threads : kMaxThreads);
}

bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

template <typename T>
void launch(void* x_data, int64_t row_stride, void* weight_data, float eps, void* out_data, int64_t rows,
            int64_t hidden, cudaStream_t stream) {
  const T* x = static_cast<const T*>(x_data);
  const T* weight = static_cast<const T*>(weight_data);
  T* out = static_cast<T*>(out_data);
  constexpr int kLanes = kWidest<T>;
  const bool wide = hidden % kLanes == 0 && row_stride % kLanes == 0 && aligned(x) && aligned(weight) && aligned(out);
  const int64_t packs = wide ? hidden / kLanes : hidden;
  const auto kernel = !wide                  ? rms_norm_looped<T, 1>
                      : packs <= kMaxThreads ? rms_norm_in_registers<T>
                                             : rms_norm_looped<T, kLanes>;
  kernel<<<static_cast<unsigned>(rows), threads_for(packs), 0, stream>>>(x, row_stride, weight, eps, out, hidden);
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

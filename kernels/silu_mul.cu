// /// e2e
// op: silu_mul
// entry: silu_mul_forward
// binding: tvm-ffi
// device: cuda
// dtypes: [float32, float16, bfloat16]
// deterministic: true
// ///
//
// SwiGLU's product on the GPU in one launch: y = round(gate / (1 + exp(-gate))) * up, element by element.
//
// * One pass: gate and up are read once, y is written once. Eager PyTorch launches twice, writes silu(gate) to
//   memory and reads it back. A compiler fuses the two as well: this kernel is for what nobody compiles.
// * 16 bytes per load, one pack of neighbours per thread. The kernel moves bytes and hardly computes, so what
//   counts is bytes in flight: the widest load asks for them in the fewest instructions.
// * Rounded twice on purpose. The model rounds silu(gate) to its dtype before it multiplies. Multiplying first
//   is *more* accurate and still another function: a difference from the model as trained.
// * gate and up may be the two halves of one projection's output, as in Phi-3: rows may be further apart than
//   they are long. Where nothing lies between them, all rows are one long row.
// * Blocks never span rows, so the one division that finds a row is the same for all threads of a block.

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

constexpr int kThreads = 256;

// ---- Device side.

__device__ float to_float(float value) { return value; }
__device__ float to_float(__half value) { return __half2float(value); }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ void round_to(float value, float& rounded) { rounded = value; }
__device__ void round_to(float value, __half& rounded) { rounded = __float2half_rn(value); }
__device__ void round_to(float value, __nv_bfloat16& rounded) { rounded = __float2bfloat16_rn(value); }

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
__device__ Pack<T, kLanes> multiply(const Pack<T, kLanes>& gate, const Pack<T, kLanes>& up) {
  Pack<T, kLanes> y;
#pragma unroll
  for (int k = 0; k < kLanes; ++k) {
    const float x = to_float(gate.lane[k]);
    T activated;
    round_to(x / (1.0f + expf(-x)), activated);
    round_to(to_float(activated) * to_float(up.lane[k]), y.lane[k]);
  }
  return y;
}

// kLanes is 1 where a wider load would be misaligned or would run over the end of a row.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads)
    silu_mul(const T* __restrict__ gate, int64_t gate_stride, const T* __restrict__ up, int64_t up_stride,
             T* __restrict__ out, int64_t hidden, unsigned blocks_per_row) {
  const unsigned row = blockIdx.x / blocks_per_row, place = blockIdx.x % blocks_per_row;
  const int64_t i = (int64_t(place) * kThreads + threadIdx.x) * kLanes;
  if (i >= hidden) return;
  const auto left = load<T, kLanes>(gate + row * gate_stride + i);
  const auto right = load<T, kLanes>(up + row * up_stride + i);
  store(out + row * hidden + i, multiply(left, right));
}

// ---- Host side.

bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

// Whether it was launched: a grid has at most 2^31 - 1 blocks.
template <typename T>
bool launch(void* gate_data, int64_t gate_stride, void* up_data, int64_t up_stride, void* out_data, int64_t rows,
            int64_t hidden, cudaStream_t stream) {
  const T* gate = static_cast<const T*>(gate_data);
  const T* up = static_cast<const T*>(up_data);
  T* out = static_cast<T*>(out_data);
  if (gate_stride == hidden && up_stride == hidden) {
    hidden *= rows;
    gate_stride = up_stride = hidden;
    rows = 1;
  }
  constexpr int kLanes = kWidest<T>;
  const bool whole = hidden % kLanes == 0 && gate_stride % kLanes == 0 && up_stride % kLanes == 0;
  const bool wide = whole && aligned(gate) && aligned(up) && aligned(out);
  const int64_t packs = wide ? hidden / kLanes : hidden;
  const int64_t blocks_per_row = (packs + kThreads - 1) / kThreads;
  if (blocks_per_row > INT_MAX / rows) return false;
  const auto kernel = wide ? silu_mul<T, kLanes> : silu_mul<T, 1>;
  kernel<<<static_cast<unsigned>(rows * blocks_per_row), kThreads, 0, stream>>>(
      gate, gate_stride, up, up_stride, out, hidden, static_cast<unsigned>(blocks_per_row));
  return true;
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
void silu_mul_forward(TensorView gate, TensorView up, TensorView out) {
  const auto require = [&](bool holds, const char* rule) {
    if (holds) return;
    TVM_FFI_THROW(ValueError) << "silu_mul: " << rule << "; got gate " << gate.dtype() << gate.shape()
                              << " with strides " << gate.strides() << ", up " << up.dtype() << up.shape()
                              << " with strides " << up.strides() << ", out " << out.dtype() << out.shape()
                              << " with strides " << out.strides();
  };
  require(gate.device().device_type == kDLCUDA, "gate must be on a CUDA device");
  require(same_device(gate, up) && same_device(gate, out), "all tensors must be on one device");
  require(up.dtype() == gate.dtype() && out.dtype() == gate.dtype(), "gate, up and out must share one dtype");
  require(gate.ndim() >= 1, "gate needs at least one dimension");
  require(same_shape(gate, up) && same_shape(gate, out), "gate, up and out must share one shape");
  require(out.IsContiguous(), "out must be contiguous");
  const int64_t elements = gate.numel();
  if (elements == 0) return;  // a grid of zero blocks would be a launch error
  const int64_t gate_stride = common_row_stride(gate), up_stride = common_row_stride(up);
  require(gate_stride >= 0 && up_stride >= 0, "rows must be dense and evenly spaced (call contiguous() first)");
  const int64_t hidden = gate.size(-1), rows = elements / hidden;

  // The stream that the caller's framework works on, never the default stream: that one would not wait for
  // the kernel that writes gate, and could not be captured in a CUDA graph.
  const tvm::ffi::CUDADeviceGuard guard(gate.device().device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, gate.device().device_id));
  const DLDataType dtype = gate.dtype();
  bool launched = false;
  if (dtype == DLDataType{kDLFloat, 32, 1}) {
    launched = launch<float>(data(gate), gate_stride, data(up), up_stride, data(out), rows, hidden, stream);
  } else if (dtype == DLDataType{kDLFloat, 16, 1}) {
    launched = launch<__half>(data(gate), gate_stride, data(up), up_stride, data(out), rows, hidden, stream);
  } else if (dtype == DLDataType{kDLBfloat, 16, 1}) {
    launched = launch<__nv_bfloat16>(data(gate), gate_stride, data(up), up_stride, data(out), rows, hidden, stream);
  } else {
    require(false, "the dtype must be float32, float16 or bfloat16");
  }
  require(launched, "these are too many elements for one grid");
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(silu_mul_forward, silu_mul_forward);

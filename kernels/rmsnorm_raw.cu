// /// e2e
// op: rms_norm
// binding: raw
// device: cuda
// dtypes: [float32, float16, bfloat16]
// entry: {float32: rmsnorm_f32, float16: rmsnorm_f16, bfloat16: rmsnorm_bf16}
// args: [x, weight, eps, out, hidden]
// launch: {grid: [rows], block: [256]}
// deterministic: true
// ///
//
// RMSNorm as bare CUDA kernels: y = weight * round(x / sqrt(mean(x * x) + eps)), row by row.
//
// A raw candidate brings no host code. e2e compiles this file, reads the launch from the block above and
// launches by itself, on its own stream. So nothing of the candidate runs in the measuring process: no work
// can move to another stream or thread, no flag or patched function is left behind. How the block is read:
//
//   entry    the kernel's name, or one name for each dtype of x
//   args     what the kernel's parameters are, in order: tensors by their names in the op's signature, as
//            pointers to dense memory (an output is out); scalars by their names, as float; named dimensions
//            (rows, hidden), as long long
//   launch   grid and block, up to three extents each, and shared_bytes for dynamic shared memory: integers or
//            arithmetic over the named dimensions. A grid with a zero in it has no work and is not launched. A list
//            of launches runs one after the other, each with its own entry and args
//
// One block per row: the sum over a row stays inside one block, in a fixed order of additions. rmsnorm.cu
// chooses its block by the row's length and keeps the row in registers; here the launch is fixed and the row is
// read twice, the second time from the cache.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float to_float(float value) { return value; }
__device__ float to_float(__half value) { return __half2float(value); }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ void round_to(float value, float& rounded) { rounded = value; }
__device__ void round_to(float value, __half& rounded) { rounded = __float2half_rn(value); }
__device__ void round_to(float value, __nv_bfloat16& rounded) { rounded = __float2bfloat16_rn(value); }

// Rounded twice, as Transformers' LlamaRMSNorm does: to the dtype of x before the weight comes in, and after.
template <typename T>
__device__ T normalise(T x, float scale, T weight) {
  T normalised, y;
  round_to(to_float(x) * scale, normalised);
  round_to(to_float(weight) * to_float(normalised), y);
  return y;
}

__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}

// The sum over the block, in every thread; for whole warps, and once per kernel.
__device__ float block_sum(float value) {
  __shared__ float sums[32];
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  value = warp_sum(value);
  if (lane == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(lane < warps ? sums[lane] : 0.0f);
}

// The same row as pointers to 16 bytes at a time: memory speed comes from wide loads.
template <typename T>
union Pack {
  static constexpr int kLanes = sizeof(uint4) / sizeof(T);
  uint4 bits;
  T lane[kLanes];
  __device__ Pack(const T* address) : bits(*reinterpret_cast<const uint4*>(address)) {}
};

__device__ bool aligned(const void* address) { return reinterpret_cast<unsigned long long>(address) % 16 == 0; }

template <typename T>
__device__ void rmsnorm(const T* x, const T* weight, float eps, T* out, long long hidden) {
  constexpr int kLanes = Pack<T>::kLanes;
  const T* x_row = x + blockIdx.x * hidden;
  T* out_row = out + blockIdx.x * hidden;
  // Every row starts on 16 bytes if the first does and a row is whole packs; else take single elements.
  const bool wide = hidden % kLanes == 0 && aligned(x) && aligned(weight) && aligned(out);
  const long long lanes = wide ? kLanes : 1, first = threadIdx.x * lanes, step = blockDim.x * lanes;

  float sum = 0.0f;
  for (long long i = first; i < hidden; i += step) {
    if (wide) {
      const Pack<T> values(x_row + i);
#pragma unroll
      for (int k = 0; k < kLanes; ++k) sum += to_float(values.lane[k]) * to_float(values.lane[k]);
    } else {
      sum += to_float(x_row[i]) * to_float(x_row[i]);
    }
  }
  const float scale = rsqrtf(block_sum(sum) / hidden + eps);

  for (long long i = first; i < hidden; i += step) {
    if (wide) {
      Pack<T> values(x_row + i);
      const Pack<T> weights(weight + i);
#pragma unroll
      for (int k = 0; k < kLanes; ++k) values.lane[k] = normalise(values.lane[k], scale, weights.lane[k]);
      *reinterpret_cast<uint4*>(out_row + i) = values.bits;
    } else {
      out_row[i] = normalise(x_row[i], scale, weight[i]);
    }
  }
}

// __restrict__ promises that out overlaps nothing: loads may then take the read-only path and move ahead of stores.
extern "C" __global__ void rmsnorm_f32(const float* __restrict__ x, const float* __restrict__ weight, float eps,
                                       float* __restrict__ out, long long hidden) {
  rmsnorm(x, weight, eps, out, hidden);
}

extern "C" __global__ void rmsnorm_f16(const __half* __restrict__ x, const __half* __restrict__ weight, float eps,
                                       __half* __restrict__ out, long long hidden) {
  rmsnorm(x, weight, eps, out, hidden);
}

extern "C" __global__ void rmsnorm_bf16(const __nv_bfloat16* __restrict__ x,
                                        const __nv_bfloat16* __restrict__ weight, float eps,
                                        __nv_bfloat16* __restrict__ out, long long hidden) {
  rmsnorm(x, weight, eps, out, hidden);
}

// /// e2e
// op: module:LeakyIntegrator
// entry: {float32: leaky_integrator_f32, bfloat16: leaky_integrator_bf16}
// binding: raw
// device: cuda
// dtypes: [float32, bfloat16]
// args: [x, leak, out, dim0, dim1, dim2]
// launch: {grid: ["(dim0 * dim2 + 127) // 128"], block: [128]}
// ///
//
// y[t] = (1 - leak) * x[t] + leak * y[t - 1] over (batch, time, hidden): dim0, dim1, dim2.
//
// One thread owns one channel of one sequence and walks through time with the state in a register. Neighbouring
// threads own neighbouring channels, so every step's loads and stores are contiguous. The loads do not depend on
// the state: unrolling keeps several in flight while the chain of multiply-adds catches up.
// The state is float32 even for bfloat16 tensors; only what is stored is rounded.

#include <cuda_bf16.h>

template <typename T>
__device__ void integrate(const T* x, const T* leak, T* out, long long batches, long long times, long long hidden) {
  const long long channel = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= batches * hidden) return;
  const long long first = channel / hidden * times * hidden + channel % hidden;
  const float a = (float)leak[channel % hidden];
  float state = 0.0f;
#pragma unroll 8
  for (long long t = 0; t < times; ++t) {
    state = (1.0f - a) * (float)x[first + t * hidden] + a * state;
    out[first + t * hidden] = (T)state;
  }
}

extern "C" __global__ void leaky_integrator_f32(const float* x, const float* leak, float* out, long long batches,
                                                long long times, long long hidden) {
  integrate(x, leak, out, batches, times, hidden);
}

extern "C" __global__ void leaky_integrator_bf16(const __nv_bfloat16* x, const __nv_bfloat16* leak,
                                                 __nv_bfloat16* out, long long batches, long long times,
                                                 long long hidden) {
  integrate(x, leak, out, batches, times, hidden);
}

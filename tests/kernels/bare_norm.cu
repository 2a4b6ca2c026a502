// /// e2e
// op: rms_norm
// entry: bare_norm
// dtypes: [float32]
// args: [out, x, weight, hidden, eps]
// launch: {grid: [rows], block: [128], shared_bytes: "4 * 128"}
// ///
// A correct rms_norm in one bare function; arguments in an order of its own.

extern "C" __global__ void bare_norm(float* out, const float* x, const float* weight, long long hidden, float eps) {
  extern __shared__ float partial[];
  const float* row = x + blockIdx.x * hidden;
  float sum = 0;
  for (long long i = threadIdx.x; i < hidden; i += blockDim.x) sum += row[i] * row[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int width = blockDim.x / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) partial[threadIdx.x] += partial[threadIdx.x + width];
    __syncthreads();
  }
  const float norm = rsqrtf(partial[0] / hidden + eps);
  for (long long i = threadIdx.x; i < hidden; i += blockDim.x) out[blockIdx.x * hidden + i] = row[i] * norm * weight[i];
}

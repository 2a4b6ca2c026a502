// /// e2e
// op: rms_norm
// binding: raw
// dtypes: [float32]
// workspace: [{scale: "rows, float32"}]
// launch:
//   - {entry: scales, args: [x, eps, scale, hidden], grid: [rows], block: [128], shared_bytes: "4 * 128"}
//   - {entry: apply, args: [x, weight, scale, out, rows, hidden], grid: ["(rows * hidden + 255) // 256"], block: [256]}
// ///
// rms_norm in two launches: a scale for every row, then every element by itself.

extern "C" __global__ void scales(const float* x, float eps, float* scale, long long hidden) {
  extern __shared__ float sums[];
  const float* row = x + (long long)blockIdx.x * hidden;
  float sum = 0.0f;
  for (long long i = threadIdx.x; i < hidden; i += blockDim.x) sum += row[i] * row[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) scale[blockIdx.x] = rsqrtf(sums[0] / hidden + eps);
}

extern "C" __global__ void apply(const float* x, const float* weight, const float* scale, float* out, long long rows,
                                 long long hidden) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * hidden) out[i] = x[i] * scale[i / hidden] * weight[i % hidden];
}

// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// Calls itself until its stack is full.

#include "norm.h"

static int64_t deeper(volatile int64_t depth) {
  volatile char frame[4096];
  frame[depth % 4096] = 1;
  return depth < 0 ? frame[0] : deeper(depth + 1) + frame[1];
}

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  if (deeper(0) > 0) norm_rows(x, weight, eps, out);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

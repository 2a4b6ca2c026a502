// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// Takes memory until there is none.
#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  for (;;) {
    volatile char* block = new char[64 << 20];
    for (int64_t i = 0; i < (64 << 20); i += 4096) block[i] = 1;
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// Gives memory back that is not its own any more.
#include <cstdlib>

#include "norm.h"

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  void* volatile block = std::malloc(64);
  std::free(block);
  std::free(block);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

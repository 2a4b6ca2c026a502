// /// e2e
// op: rms_norm
// entry: norm
// device: cpu
// dtypes: [float32]
// ///
// /// expected
// row: T2
// outcome: [incorrect]
// codes: [op_error_exceeded]
// ///
// A thread in C++, which Python does not count, fills the output after the return.
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "../../kernels/bad/norm.h"

static std::vector<float> kept;

static void norm(TensorView x, TensorView weight, double eps, TensorView out) {
  std::vector<float> wanted(out.numel());
  norm_rows(x, weight, eps, out);
  float* to = static_cast<float*>(out.data_ptr());
  wanted.assign(to, to + out.numel());
  std::memset(to, 0, out.numel() * sizeof(float));
  std::thread([wanted]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    kept.swap(wanted);  // where a real one would write to the output, which is gone by now
  }).detach();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);

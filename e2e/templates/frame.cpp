// /// e2e
// op: $op
// entry: $op
// binding: tvm-ffi
// device: cpu
// dtypes: [float32, float16, bfloat16]
// deterministic: true
$block// ///
//
// $op on the CPU in plain loops: right on every input, and slow. Make `compute` fast, and look with
//   e2e check $file                               is it still right?
//   e2e validate WORKLOAD --kernel $file          is it a win?

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

using tvm::ffi::Optional;
using tvm::ffi::String;
using tvm::ffi::TensorView;

struct BFloat16 {  // the upper half of a float32
  uint16_t bits;
  BFloat16() = default;
  explicit BFloat16(float value) {  // to nearest, ties to even
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof(wide));
    bits = uint16_t(std::isnan(value) ? (wide >> 16) | 0x40 : (wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
  explicit operator float() const {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
};

$types
$maths
template <auto Compute, typename... Arguments>
void each(int64_t count, const Arguments&... arguments) {
#pragma omp parallel for
  for (int64_t item = 0; item < count; ++item) Compute(item, arguments...);
}

template <typename T>
void run($array_parameters) {
  $steps
}

void $op($parameters) {
  const DLDataType dtype = $first.dtype();
  if (!($dtypes_fit)) {
    TVM_FFI_THROW(TypeError) << "$op takes $taken";
  }
  if (dtype == DLDataType{kDLFloat, 32, 1}) {
    run<float>($float32);
  } else if (dtype == DLDataType{kDLFloat, 16, 1}) {
    run<_Float16>($float16);
  } else if (dtype == DLDataType{kDLBfloat, 16, 1}) {
    run<BFloat16>($bfloat16);
  } else {
    TVM_FFI_THROW(TypeError) << "$op: the dtype must be float32, float16 or bfloat16";
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC($op, $op);

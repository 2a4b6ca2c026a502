// /// e2e
// op: silu_mul
// entry: silu_mul_forward
// binding: tvm-ffi
// device: cpu
// dtypes: [float32, float16, bfloat16]
// flags: [-O3, -march=native, -ffp-contract=fast, -fopenmp]
// deterministic: true
// ///
//
// SwiGLU's product on the CPU: y = round(gate / (1 + exp(-gate))) * up, element by element.
//
// * One pass: gate and up are read once, y is written once. Eager PyTorch writes silu(gate) to memory and
//   reads it back to multiply.
// * An exponential that vectorises. std::exp is a call into the maths library, one value at a time, unless
//   -ffast-math lets the compiler swap it; the few lines below are as accurate and stay in the registers.
// * Rounded twice on purpose. The model rounds silu(gate) to its dtype before it multiplies. Multiplying
//   first is *more* accurate and still another function: a difference from the model as trained.
// * gate and up may be the two halves of one projection's output, as in Phi-3: rows may be further apart
//   than they are long.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <cstring>
#include <limits>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

using tvm::ffi::TensorView;

// ---- Storage types. Integer arithmetic without branches, because that vectorises on every machine. Both
// ---- conversions to 16 bits round to nearest, ties to even, and keep NaN a NaN. For float16 they cost more
// ---- than the product itself: PyTorch has an instruction for it that the compiler does not find in such loops.

template <typename To, typename From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

struct BFloat16 {  // the upper half of a float32
  uint16_t bits;
};

struct Float16 {  // 1 sign, 5 exponent, 10 mantissa bits
  uint16_t bits;
};

inline float to_float(float value) { return value; }

inline float to_float(BFloat16 value) { return bits_as<float>(uint32_t(value.bits) << 16); }

inline float to_float(Float16 value) {
  const uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
  const uint32_t magnitude = uint32_t(value.bits & 0x7fff) << 13;
  const uint32_t normal = magnitude + (uint32_t(127 - 15) << 23);  // move the exponent's bias
  const uint32_t special = magnitude + (uint32_t(255 - 31) << 23);  // infinity and NaN stay so
  // A subnormal is mantissa * 2^-24: build 2^-14 * (1 + mantissa) and take the 2^-14 off again.
  const uint32_t subnormal =
      bits_as<uint32_t>(bits_as<float>(normal + (1u << 23)) - bits_as<float>(113u << 23));
  const uint32_t finite = magnitude < 0x00800000 ? subnormal : normal;
  return bits_as<float>(sign | (magnitude >= 0x0f800000 ? special : finite));
}

template <typename T>
T from_float(float value);

template <>
inline float from_float(float value) {
  return value;
}

template <>
inline BFloat16 from_float(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x0040;  // rounding could carry a NaN over to infinity
  return {uint16_t((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded)};
}

template <>
inline Float16 from_float(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - (uint32_t(127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14: adding 0.5 makes the adder itself round at 2^-24, float16's smallest step.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<uint32_t>(0.5f);
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;  // NaN; infinity and overflow
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  return {uint16_t(sign | (magnitude >= (143u << 23) ? special : finite))};
}

// ---- The kernel.

// exp(x) = 2^n * exp(r) with n whole and |r| <= log(2) / 2. Below -87 it gives exp(-87), which is nothing
// beside the one that is added; above 88 infinity, which makes the quotient nothing. NaN stays NaN.
inline float exponential(float x) {
  constexpr float kLog2OfE = 1.44269504f;
  constexpr float kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;  // n * high is exact: few bits are set
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it leaves no room for a fraction
  const float bounded = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
  const float shifted = bounded * kLog2OfE + kShift;
  const float n = shifted - kShift;
  const float r = (bounded - n * kLog2High) - n * kLog2Low;
  // Coefficients of Cephes' expf (Moshier 1992): 1 + r + r^2 p(r), good to about one unit in the last place.
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  // The low bits of `shifted` are n as an integer: moved up to the exponent's place, they make 2^n.
  const uint32_t exponent = (bits_as<uint32_t>(shifted) << 23) + (127u << 23);
  const float value = (p * (r * r) + r + 1.0f) * bits_as<float>(exponent);
  return x > 88.0f ? std::numeric_limits<float>::infinity() : value;
}

template <typename T>
void multiply(const T* gate, const T* up, T* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float x = to_float(gate[i]);
    const T activated = from_float<T>(x / (1.0f + exponential(-x)));
    out[i] = from_float<T>(to_float(activated) * to_float(up[i]));
  }
}

// Waking a second thread costs some microseconds, about as long as this many elements take.
constexpr int64_t kElementsWorthAThread = 1 << 14;
constexpr int64_t kPiece = 1 << 12;  // what a thread takes at a time, so that one long row can be shared as well

template <typename T>
void multiply_rows(const void* gate_data, int64_t gate_stride, const void* up_data, int64_t up_stride,
                   void* out_data, int64_t rows, int64_t hidden) {
  const T* gate = static_cast<const T*>(gate_data);
  const T* up = static_cast<const T*>(up_data);
  T* out = static_cast<T*>(out_data);
  const int64_t pieces = (hidden + kPiece - 1) / kPiece;
#ifdef _OPENMP
  int64_t threads = rows * hidden / kElementsWorthAThread;
  if (threads > omp_get_max_threads()) threads = omp_get_max_threads();  // torch.set_num_threads sets it
  if (threads < 1) threads = 1;
#pragma omp parallel for schedule(static) num_threads(int(threads)) if (threads > 1)
#endif
  for (int64_t task = 0; task < rows * pieces; ++task) {
    const int64_t row = task / pieces, first = task % pieces * kPiece;
    const int64_t count = hidden - first < kPiece ? hidden - first : kPiece;
    multiply(gate + row * gate_stride + first, up + row * up_stride + first, out + row * hidden + first, count);
  }
}

// ---- The binding: look at every argument, so that a wrong call is an error and never a wrong answer.

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

bool on_cpu(const TensorView& tensor) { return tensor.device().device_type == kDLCPU; }

void* data(const TensorView& tensor) { return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset(); }

void silu_mul_forward(TensorView gate, TensorView up, TensorView out) {
  const auto require = [&](bool holds, const char* rule) {
    if (holds) return;
    TVM_FFI_THROW(ValueError) << "silu_mul: " << rule << "; got gate " << gate.dtype() << gate.shape()
                              << " with strides " << gate.strides() << ", up " << up.dtype() << up.shape()
                              << " with strides " << up.strides() << ", out " << out.dtype() << out.shape()
                              << " with strides " << out.strides();
  };
  require(on_cpu(gate) && on_cpu(up) && on_cpu(out), "all tensors must be on the CPU");
  require(up.dtype() == gate.dtype() && out.dtype() == gate.dtype(), "gate, up and out must share one dtype");
  require(gate.ndim() >= 1, "gate needs at least one dimension");
  require(same_shape(gate, up) && same_shape(gate, out), "gate, up and out must share one shape");
  require(out.IsContiguous(), "out must be contiguous");
  const int64_t elements = gate.numel();
  if (elements == 0) return;
  const int64_t gate_stride = common_row_stride(gate), up_stride = common_row_stride(up);
  require(gate_stride >= 0 && up_stride >= 0, "rows must be dense and evenly spaced (call contiguous() first)");

  const int64_t hidden = gate.size(-1), rows = elements / hidden;
  const DLDataType dtype = gate.dtype();
  if (dtype == DLDataType{kDLFloat, 32, 1}) {
    multiply_rows<float>(data(gate), gate_stride, data(up), up_stride, data(out), rows, hidden);
  } else if (dtype == DLDataType{kDLFloat, 16, 1}) {
    multiply_rows<Float16>(data(gate), gate_stride, data(up), up_stride, data(out), rows, hidden);
  } else if (dtype == DLDataType{kDLBfloat, 16, 1}) {
    multiply_rows<BFloat16>(data(gate), gate_stride, data(up), up_stride, data(out), rows, hidden);
  } else {
    require(false, "the dtype must be float32, float16 or bfloat16");
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(silu_mul_forward, silu_mul_forward);

// /// e2e
// op: layer_norm
// entry: layer_norm_forward
// binding: tvm-ffi
// device: cpu
// dtypes: [float32, float16, bfloat16]
// flags: [-O3, -march=native, -ffp-contract=fast, -fopenmp]
// deterministic: true
// ///
//
// LayerNorm on the CPU: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row.
//
// * Three passes over a row: its mean, its variance about that mean, the result. Only the first one
//   reads memory; the row is in the first-level cache then.
// * Not mean(x * x) - mean(x)^2, which would save a pass. Both terms are large where the mean is, their
//   difference is not, and what is left of it in float32 may be rounding error or even negative.
// * Summed in float32, rounded once, at the end: as PyTorch does it, whatever the dtype.
// * An optional tensor arrives as tvm::ffi::Optional: None in Python is no value here. Without a bias the
//   loop is another one, instead of one that adds zeros.
// * No -ffast-math: it would let the compiler assume that NaN and infinity never happen, and a
//   diverged training run must look diverged. -ffp-contract=fast only permits fused multiply-add.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

using tvm::ffi::TensorView;

// ---- Storage types. Integer arithmetic without branches, because that vectorises on every machine. Both
// ---- conversions to 16 bits round to nearest, ties to even, and keep NaN a NaN. For float16 they cost more
// ---- than the norm itself: PyTorch has an instruction for it that the compiler does not find in such loops.

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

// One running sum would wait for itself at every step, and the compiler may not split it: float
// addition is not associative. So the split is written down. 32 partial sums fill the vector units of
// any current machine, fix the order of the additions whatever the vector width, and are more accurate
// than one long chain.
constexpr int64_t kPartials = 32;

template <typename T, typename Term>
float sum_over(const T* x, int64_t hidden, Term term) {
  float partial[kPartials] = {};
  int64_t i = 0;
  for (; i + kPartials <= hidden; i += kPartials) {
#pragma omp simd
    for (int64_t k = 0; k < kPartials; ++k) partial[k] += term(to_float(x[i + k]));
  }
  for (int64_t k = 0; i + k < hidden; ++k) partial[k] += term(to_float(x[i + k]));
  for (int64_t width = kPartials / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) partial[k] += partial[k + width];
  }
  return partial[0];
}

template <typename T>
void normalise_row(const T* x, const T* weight, const T* bias, float eps, T* out, int64_t hidden) {
  const float mean = sum_over(x, hidden, [](float value) { return value; }) / float(hidden);
  const float squares = sum_over(x, hidden, [mean](float value) { return (value - mean) * (value - mean); });
  const float scale = 1.0f / std::sqrt(squares / float(hidden) + eps);
  if (bias == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < hidden; ++i) {
      out[i] = from_float<T>((to_float(x[i]) - mean) * scale * to_float(weight[i]));
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < hidden; ++i) {
      out[i] = from_float<T>((to_float(x[i]) - mean) * scale * to_float(weight[i]) + to_float(bias[i]));
    }
  }
}

// Waking a second thread costs some microseconds, about as long as this many elements take.
constexpr int64_t kElementsWorthAThread = 1 << 15;

template <typename T>
void normalise(const void* x_data, int64_t row_stride, const void* weight_data, const void* bias_data, float eps,
               void* out_data, int64_t rows, int64_t hidden) {
  const T* x = static_cast<const T*>(x_data);
  const T* weight = static_cast<const T*>(weight_data);
  const T* bias = static_cast<const T*>(bias_data);
  T* out = static_cast<T*>(out_data);
  // A row is never shared between threads: any number of threads gives the same bits.
#ifdef _OPENMP
  int64_t threads = rows * hidden / kElementsWorthAThread;
  if (threads > omp_get_max_threads()) threads = omp_get_max_threads();  // torch.set_num_threads sets it
  if (threads > rows) threads = rows;
  if (threads < 1) threads = 1;
#pragma omp parallel for schedule(static) num_threads(int(threads)) if (threads > 1)
#endif
  for (int64_t row = 0; row < rows; ++row) {
    normalise_row(x + row * row_stride, weight, bias, eps, out + row * hidden, hidden);
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

void layer_norm_forward(TensorView x, TensorView weight, tvm::ffi::Optional<TensorView> bias, double eps,
                        TensorView out) {
  const auto require = [&](bool holds, const char* rule) {
    if (holds) return;
    TVM_FFI_THROW(ValueError) << "layer_norm: " << rule << "; got x " << x.dtype() << x.shape() << " with strides "
                              << x.strides() << ", weight " << weight.dtype() << weight.shape() << ", out "
                              << out.dtype() << out.shape() << " with strides " << out.strides();
  };
  const auto is_vector = [&](const TensorView& tensor) {
    return on_cpu(tensor) && tensor.dtype() == x.dtype() && tensor.ndim() == 1 && tensor.size(0) == x.size(-1) &&
           tensor.IsContiguous();
  };
  require(on_cpu(x) && on_cpu(out), "all tensors must be on the CPU");
  require(x.ndim() >= 1, "x needs at least one dimension");
  require(is_vector(weight), "weight must have the shape [hidden] and the dtype of x, contiguous on the CPU");
  require(!bias.has_value() || is_vector(bias.value()), "so must bias, where there is one");
  require(out.dtype() == x.dtype() && same_shape(x, out), "out must have the dtype and the shape of x");
  require(out.IsContiguous(), "out must be contiguous");
  const int64_t elements = x.numel();
  if (elements == 0) return;
  const int64_t row_stride = common_row_stride(x);
  require(row_stride >= 0, "the rows of x must be dense and evenly spaced (call x.contiguous() first)");

  const int64_t hidden = x.size(-1), rows = elements / hidden;
  const void* offset = bias.has_value() ? data(bias.value()) : nullptr;
  const DLDataType dtype = x.dtype();
  if (dtype == DLDataType{kDLFloat, 32, 1}) {
    normalise<float>(data(x), row_stride, data(weight), offset, float(eps), data(out), rows, hidden);
  } else if (dtype == DLDataType{kDLFloat, 16, 1}) {
    normalise<Float16>(data(x), row_stride, data(weight), offset, float(eps), data(out), rows, hidden);
  } else if (dtype == DLDataType{kDLBfloat, 16, 1}) {
    normalise<BFloat16>(data(x), row_stride, data(weight), offset, float(eps), data(out), rows, hidden);
  } else {
    require(false, "the dtype must be float32, float16 or bfloat16");
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(layer_norm_forward, layer_norm_forward);

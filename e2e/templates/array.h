// A tensor as the loops see it: [i] is its i-th element in row-major order, wherever that lies in memory. The
// divisions in there are what a fast kernel does without: it knows its strides.
constexpr int kMostDimensions = 8;

template <typename T>
struct Array {
  T* data;  // null for an optional tensor that is absent
  int dimensions;
  int64_t size[kMostDimensions], stride[kMostDimensions];

  $inline int64_t last() const { return size[dimensions - 1]; }
  $inline int64_t numel() const {
    int64_t count = 1;
    for (int d = 0; d < dimensions; ++d) count *= size[d];
    return count;
  }
  $inline T& operator[](int64_t i) const {
    int64_t offset = 0;
    for (int d = dimensions - 1; d >= 0; --d) {
      offset += i % size[d] * stride[d];
      i /= size[d];
    }
    return data[offset];
  }
};

template <typename T>
Array<T> array(const TensorView& tensor) {
  if (tensor.ndim() > kMostDimensions) TVM_FFI_THROW(ValueError) << "$op: too many dimensions";
  Array<T> made{};
  made.data = reinterpret_cast<T*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
  made.dimensions = tensor.ndim();
  for (int d = 0; d < made.dimensions; ++d) {
    made.size[d] = tensor.size(d);
    made.stride[d] = tensor.stride(d);
  }
  return made;
}

template <typename T>
Array<T> array(const Optional<TensorView>& tensor) {
  return tensor.has_value() ? array<T>(tensor.value()) : Array<T>{};
}

inline bool has(const TensorView& tensor, DLDataType dtype) { return tensor.dtype() == dtype; }
inline bool has(const Optional<TensorView>& tensor, DLDataType dtype) {
  return !tensor.has_value() || has(tensor.value(), dtype);
}

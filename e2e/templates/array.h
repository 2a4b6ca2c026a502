// Where a tensor's elements lie: offset(i) is the place of the i-th one in row-major order. The divisions in there are
// what a fast kernel does without: it knows its strides.
constexpr int kMostDimensions = 8;

struct Layout {
  int dimensions;
  int64_t size[kMostDimensions], stride[kMostDimensions];

  $inline int64_t last() const { return size[dimensions - 1]; }
  $inline int64_t numel() const {
    int64_t count = 1;
    for (int d = 0; d < dimensions; ++d) count *= size[d];
    return count;
  }
  $inline int64_t offset(int64_t i) const {
    int64_t place = 0;
    for (int d = dimensions - 1; d >= 0; --d) {
      place += i % size[d] * stride[d];
      i /= size[d];
    }
    return place;
  }
};

// Elements at equal distances.
template <typename T>
struct Line {
  T* data;
  int64_t stride;
  $inline T& operator[](int64_t i) const { return data[i * stride]; }
};

// A tensor as the loops see it: [i] is its i-th element, line(i) its i-th line along the last dimension.
template <typename T>
struct Array : Layout {
  T* data;  // null for an optional tensor that is absent
  $inline T& operator[](int64_t i) const { return data[offset(i)]; }
  $inline Line<T> line(int64_t i) const { return {data + offset(i * last()), stride[dimensions - 1]}; }
};

template <typename T>
Array<T> array(const Optional<TensorView>& given) {
  Array<T> made{};
  if (!given.has_value()) return made;
  const TensorView tensor = given.value();
  if (tensor.ndim() > kMostDimensions) TVM_FFI_THROW(ValueError) << "$op: too many dimensions";
  made.data = reinterpret_cast<T*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
  made.dimensions = tensor.ndim();
  for (int d = 0; d < made.dimensions; ++d) {
    made.size[d] = tensor.size(d);
    made.stride[d] = tensor.stride(d);
  }
  return made;
}

inline bool has(const Optional<TensorView>& tensor, std::initializer_list<DLDataType> dtypes) {
  bool found = !tensor.has_value();
  for (const DLDataType& dtype : dtypes) found = found || tensor.value().dtype() == dtype;
  return found;
}


// A tensor of which only the call says whether it holds T, float32 or booleans.
template <typename T>
struct Mixed : Layout {
  const void* data;  // null for an optional tensor that is absent
  bool is_bool, is_float;
  $inline float operator[](int64_t i) const {
    if (is_bool) return float(static_cast<const bool*>(data)[offset(i)]);
    if (is_float) return static_cast<const float*>(data)[offset(i)];
    return float(static_cast<const T*>(data)[offset(i)]);
  }
};

template <typename T>
Mixed<T> mixed(const Optional<TensorView>& tensor) {
  const Array<char> bytes = array<char>(tensor);
  return {bytes, bytes.data, has(tensor, {DLDataType{kDLBool, 8, 1}}), has(tensor, {DLDataType{kDLFloat, 32, 1}})};
}

//! int64_t: ids
// One item is one element of one row of the table.
template <typename T>
$inline int64_t items(const Array<int64_t>& ids, const Array<T>& weight, const Array<T>& out) {
  return out.numel();
}

template <typename T>
$inline void compute(int64_t item, const Array<int64_t>& ids, const Array<T>& weight, const Array<T>& out) {
  const int64_t hidden = weight.last();
  out[item] = weight[ids[item / hidden] * hidden + item % hidden];
}

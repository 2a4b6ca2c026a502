// One item is one line along `dim`: its neighbours are `inner` elements apart.
template <typename T>
$inline int64_t inner_of(const Array<T>& x, int64_t dim) {
  int64_t inner = 1;
  for (int d = int(dim < 0 ? dim + x.dimensions : dim) + 1; d < x.dimensions; ++d) inner *= x.size[d];
  return inner;
}

template <typename T>
$inline int64_t items(const Array<T>& x, int64_t dim, const Array<T>& out) {
  const int64_t length = x.size[dim < 0 ? dim + x.dimensions : dim];
  return length ? x.numel() / length : 0;
}

template <typename T>
$inline void compute(int64_t item, const Array<T>& x, int64_t dim, const Array<T>& out) {
  const int64_t length = x.size[dim < 0 ? dim + x.dimensions : dim], inner = inner_of(x, dim);
  const int64_t first = item / inner * inner * length + item % inner;
  double largest = -INFINITY, sum = 0.0;
  for (int64_t i = 0; i < length; ++i) largest = fmax(largest, double(float(x[first + i * inner])));
  for (int64_t i = 0; i < length; ++i) sum += exp(float(x[first + i * inner]) - largest);
  for (int64_t i = 0; i < length; ++i) {
    out[first + i * inner] = T(float(exp(float(x[first + i * inner]) - largest) / sum));
  }
}

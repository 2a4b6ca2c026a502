// One item is one row: y = x / sqrt(mean(x * x) + eps) * weight. Summed in double, since a long float sum drifts.
template <typename T>
$inline int64_t items(const Array<T>& x, const Array<T>& weight, double eps, const Array<T>& out) {
  return x.last() ? x.numel() / x.last() : 0;
}

template <typename T>
$inline void compute(int64_t row, const Array<T>& x, const Array<T>& weight, double eps, const Array<T>& out) {
  const int64_t hidden = x.last(), first = row * hidden;
  double squares = 0.0;
  for (int64_t i = 0; i < hidden; ++i) {
    const double value = float(x[first + i]);
    squares += value * value;
  }
  const double scale = 1.0 / sqrt(squares / hidden + eps);
  for (int64_t i = 0; i < hidden; ++i) {
    out[first + i] = T(float(float(x[first + i]) * scale * float(weight[i])));
  }
}

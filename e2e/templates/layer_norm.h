// One item is one row: y = (x - mean) / sqrt(variance + eps) * weight + bias, where there is a bias.
template <typename T>
$inline int64_t items(const Array<T>& x, const Array<T>& weight, const Array<T>& bias, double eps,
                     const Array<T>& out) {
  return x.last() ? x.numel() / x.last() : 0;
}

template <typename T>
$inline void compute(int64_t row, const Array<T>& x, const Array<T>& weight, const Array<T>& bias, double eps,
                    const Array<T>& out) {
  const int64_t hidden = x.last(), first = row * hidden;
  double sum = 0.0, squares = 0.0;
  for (int64_t i = 0; i < hidden; ++i) sum += float(x[first + i]);
  const double mean = sum / hidden;
  for (int64_t i = 0; i < hidden; ++i) {
    const double centred = float(x[first + i]) - mean;
    squares += centred * centred;
  }
  const double scale = 1.0 / sqrt(squares / hidden + eps);
  for (int64_t i = 0; i < hidden; ++i) {
    const double y = (float(x[first + i]) - mean) * scale * float(weight[i]);
    out[first + i] = T(float(bias.data ? y + float(bias[i]) : y));
  }
}

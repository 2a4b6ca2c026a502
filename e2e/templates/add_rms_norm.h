// One item is one row: the sum of x and residual, and its RMS norm.
template <typename T>
$inline int64_t items(const Array<T>& x, const Array<T>& residual, const Array<T>& weight, double eps,
                     const Array<T>& out0, const Array<T>& out1) {
  return x.last() ? x.numel() / x.last() : 0;
}

template <typename T>
$inline void compute(int64_t row, const Array<T>& x, const Array<T>& residual, const Array<T>& weight, double eps,
                    const Array<T>& out0, const Array<T>& out1) {
  const int64_t hidden = x.last(), first = row * hidden;
  double squares = 0.0;
  for (int64_t i = 0; i < hidden; ++i) {
    const double total = double(float(x[first + i])) + float(residual[first + i]);
    squares += total * total;
  }
  const double scale = 1.0 / sqrt(squares / hidden + eps);
  for (int64_t i = 0; i < hidden; ++i) {
    const double total = double(float(x[first + i])) + float(residual[first + i]);
    out0[first + i] = T(float(total * scale * float(weight[i])));
    out1[first + i] = T(float(total));
  }
}

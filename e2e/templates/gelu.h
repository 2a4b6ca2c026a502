// One item is one element: y = x Phi(x), or by tanh x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename T>
$inline int64_t items(const Array<T>& x, bool approximate, const Array<T>& out) {
  return out.numel();
}

template <typename T>
$inline void compute(int64_t i, const Array<T>& x, bool approximate, const Array<T>& out) {
  const double value = float(x[i]);
  const double u = 0.79788456080286536 * (value + 0.044715 * value * value * value);
  const double y = approximate ? value / (1.0 + exp(-2.0 * u)) : 0.5 * value * erfc(-value * 0.70710678118654752);
  out[i] = T(float(y));
}

// One item is one element: y = gate / (1 + exp(-2 u)) * up, with u = sqrt(2 / pi) (gate + 0.044715 gate^3).
template <typename T>
$inline int64_t items(const Array<T>& gate, const Array<T>& up, const Array<T>& out) {
  return out.numel();
}

template <typename T>
$inline void compute(int64_t i, const Array<T>& gate, const Array<T>& up, const Array<T>& out) {
  const double value = float(gate[i]);
  const double u = 0.79788456080286536 * (value + 0.044715 * value * value * value);
  out[i] = T(float(value / (1.0 + exp(-2.0 * u)) * float(up[i])));
}

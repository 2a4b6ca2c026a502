// One item is one element: y = gate / (1 + exp(-gate)) * up.
template <typename T>
$inline int64_t items(const Array<T>& gate, const Array<T>& up, const Array<T>& out) {
  return out.numel();
}

template <typename T>
$inline void compute(int64_t i, const Array<T>& gate, const Array<T>& up, const Array<T>& out) {
  const double value = float(gate[i]);
  out[i] = T(float(value / (1.0 + exp(-value)) * float(up[i])));
}

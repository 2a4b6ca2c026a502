// One item is one output: a row of x times a row of the weight, plus the bias, where there is one.
template <typename T>
$inline int64_t items(const Array<T>& x, const Array<T>& weight, const Array<T>& bias, const Array<T>& out) {
  return out.numel();
}

template <typename T>
$inline void compute(int64_t item, const Array<T>& x, const Array<T>& weight, const Array<T>& bias,
                    const Array<T>& out) {
  const int64_t inputs = weight.size[1], outputs = weight.size[0];
  const int64_t row = item / outputs, output = item % outputs;
  double sum = bias.data ? double(float(bias[output])) : 0.0;
  for (int64_t i = 0; i < inputs; ++i) sum += double(float(x[row * inputs + i])) * float(weight[output * inputs + i]);
  out[item] = T(float(sum));
}

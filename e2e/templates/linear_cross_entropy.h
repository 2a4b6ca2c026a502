//! int64_t: target
//! float: out, losses
//! block workspace: [{losses: "rows, float32"}]
//! block backward: reference
// Two steps, the second after all of the first: the losses of rows, then what `reduction` makes of them. Only the
// forward is here: in training, gradients come from e2e's own reference, until `backward` in the block names yours.
//
// One item is one row: log(sum(exp(x))) - x[target], where x = weight hidden is made class by class and kept nowhere.
template <typename T>
$inline int64_t items(const Array<T>& hidden, const Array<T>& weight, const Array<int64_t>& target,
                     int64_t ignore_index, Word reduction, const Array<float>& out, const Array<float>& losses) {
  return target.numel();
}

template <typename T>
$inline void compute(int64_t row, const Array<T>& hidden, const Array<T>& weight, const Array<int64_t>& target,
                    int64_t ignore_index, Word reduction, const Array<float>& out, const Array<float>& losses) {
  losses[row] = 0.0f;
  if (target[row] == ignore_index) return;
  const Line<T> state = hidden.line(row);
  double largest = -INFINITY, powers = 0.0, hit = 0.0;  // the powers so far are those of x - largest
  for (int64_t c = 0; c < weight.size[0]; ++c) {
    const Line<T> factors = weight.line(c);
    double x = 0.0;
    for (int64_t i = 0; i < hidden.last(); ++i) x += double(float(state[i])) * float(factors[i]);
    if (c == target[row]) hit = x;
    if (x > largest) {
      powers *= exp(largest - x);
      largest = x;
    }
    powers += exp(x - largest);
  }
  losses[row] = float(log(powers) - (hit - largest));
}

// One item is one element of the output.
template <typename T>
$inline int64_t items_reduced(const Array<T>& hidden, const Array<T>& weight, const Array<int64_t>& target,
                             int64_t ignore_index, Word reduction, const Array<float>& out,
                             const Array<float>& losses) {
  return out.numel();
}

template <typename T>
$inline void compute_reduced(int64_t item, const Array<T>& hidden, const Array<T>& weight,
                            const Array<int64_t>& target, int64_t ignore_index, Word reduction,
                            const Array<float>& out, const Array<float>& losses) {
  if (reduction == "none") {
    out[item] = losses[item];
    return;
  }
  double sum = 0.0;
  int64_t counted = 0;
  for (int64_t row = 0; row < target.numel(); ++row) {
    sum += losses[row];
    counted += target[row] != ignore_index;
  }
  out[item] = float(reduction == "mean" ? sum / double(counted) : sum);
}

//! int64_t: target
//! float: losses
//! block workspace: [{losses: "rows, float32"}]
//! block backward: reference
// Two steps, the second after all of the first: the losses of rows, then what `reduction` makes of them. Only the
// forward is here: in training, gradients come from e2e's own reference, until `backward` in the block names yours.
//
// One item is one row: (1 - s) (lse - x[target]) + s mean(lse - x), where lse = log(sum(exp(x))), s = label_smoothing.
template <typename T>
$inline int64_t items(const Array<T>& logits, const Array<int64_t>& target, int64_t ignore_index, Word reduction,
                     double label_smoothing, const Array<T>& out, const Array<float>& losses) {
  return target.numel();
}

template <typename T>
$inline void compute(int64_t row, const Array<T>& logits, const Array<int64_t>& target, int64_t ignore_index,
                    Word reduction, double label_smoothing, const Array<T>& out, const Array<float>& losses) {
  losses[row] = 0.0f;
  if (target[row] == ignore_index) return;
  const int64_t classes = logits.last();
  const Line<T> x = logits.line(row);
  double largest = -INFINITY, powers = 0.0, sum = 0.0;
  for (int64_t c = 0; c < classes; ++c) largest = fmax(largest, double(float(x[c])));
  for (int64_t c = 0; c < classes; ++c) {
    const double below = float(x[c]) - largest;  // never above 0: no power overflows
    powers += exp(below);
    sum += below;
  }
  const double hit = log(powers) - (float(x[target[row]]) - largest);
  losses[row] = float((1.0 - label_smoothing) * hit + label_smoothing * (log(powers) - sum / classes));
}

// One item is one element of the output.
template <typename T>
$inline int64_t items_reduced(const Array<T>& logits, const Array<int64_t>& target, int64_t ignore_index,
                             Word reduction, double label_smoothing, const Array<T>& out, const Array<float>& losses) {
  return out.numel();
}

template <typename T>
$inline void compute_reduced(int64_t item, const Array<T>& logits, const Array<int64_t>& target, int64_t ignore_index,
                            Word reduction, double label_smoothing, const Array<T>& out, const Array<float>& losses) {
  if (reduction == "none") {
    out[item] = T(losses[item]);
    return;
  }
  double sum = 0.0;
  int64_t counted = 0;
  for (int64_t row = 0; row < target.numel(); ++row) {
    sum += losses[row];
    counted += target[row] != ignore_index;
  }
  out[item] = T(float(reduction == "mean" ? sum / double(counted) : sum));
}

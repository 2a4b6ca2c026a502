//! int64_t: indices
//! Mixed: weights
//! float: gated
//! block workspace: [{gated: "rows, chosen, intermediate, float32"}]
//! block backward: reference
// Two steps, the second after all of the first. Only the forward is here: in training, gradients come from e2e's own
// reference, until `backward` in the block names yours.
//
// One item is one channel inside one expert that a token chose: silu(gate) * up.
template <typename T>
$inline int64_t items(const Array<T>& x, const Array<int64_t>& indices, const Mixed<T>& weights,
                     const Array<T>& gate_up, const Array<T>& down, const Array<T>& out, const Array<float>& gated) {
  return gated.numel();
}

template <typename T>
$inline void compute(int64_t item, const Array<T>& x, const Array<int64_t>& indices, const Mixed<T>& weights,
                    const Array<T>& gate_up, const Array<T>& down, const Array<T>& out, const Array<float>& gated) {
  const int64_t inner = gated.last(), choice = item / inner;  // choices are counted over all tokens
  const Line<T> token = x.line(choice / indices.last());
  const int64_t row = indices[choice] * 2 * inner + item % inner;  // rows of the gate, then those of up
  const Line<T> gate_row = gate_up.line(row), up_row = gate_up.line(row + inner);
  double gate = 0.0, up = 0.0;
  for (int64_t i = 0; i < x.last(); ++i) {
    gate += double(float(token[i])) * float(gate_row[i]);
    up += double(float(token[i])) * float(up_row[i]);
  }
  gated[item] = float(gate / (1.0 + exp(-gate)) * up);
}

// One item is one output: a token's choices, each through its expert's `down`, weighted and added.
template <typename T>
$inline int64_t items_added(const Array<T>& x, const Array<int64_t>& indices, const Mixed<T>& weights,
                           const Array<T>& gate_up, const Array<T>& down, const Array<T>& out,
                           const Array<float>& gated) {
  return out.numel();
}

template <typename T>
$inline void compute_added(int64_t item, const Array<T>& x, const Array<int64_t>& indices, const Mixed<T>& weights,
                          const Array<T>& gate_up, const Array<T>& down, const Array<T>& out,
                          const Array<float>& gated) {
  const int64_t hidden = out.last(), chosen = indices.last(), first = item / hidden * chosen;
  double sum = 0.0;
  for (int64_t choice = first; choice < first + chosen; ++choice) {
    const Line<float> inside = gated.line(choice);
    const Line<T> factors = down.line(indices[choice] * hidden + item % hidden);
    double product = 0.0;
    for (int64_t i = 0; i < gated.last(); ++i) product += double(inside[i]) * float(factors[i]);
    sum += weights[choice] * product;
  }
  out[item] = T(float(sum));
}

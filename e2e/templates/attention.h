//! Mixed: mask
//! block backward: reference
// One item is one query of one head and kChannels channels of its output: what the scores weigh is added up key by key,
// and shrinks whenever a larger score turns up, so that no power overflows. Each block of channels computes the scores
// again. Only the forward is here: in training, gradients come from e2e's own reference, until `backward` in the block
// names yours.
constexpr int64_t kChannels = 32;

// The mask's element for a score: a dimension of one, or one that is missing in front, stands for all.
template <typename T>
$inline float mask_at(const Mixed<T>& mask, int64_t batch, int64_t head, int64_t query, int64_t key) {
  const int64_t score[] = {batch, head, query, key};
  int64_t i = 0;
  for (int d = 0; d < mask.dimensions; ++d) {
    i = i * mask.size[d] + (mask.size[d] == 1 ? 0 : score[4 - mask.dimensions + d]);
  }
  return mask[i];
}

template <typename T>
$inline int64_t items(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Mixed<T>& mask, double scale,
                     bool causal, Maybe<double> softcap, Maybe<int64_t> window, const Array<T>& out) {
  return q.size[0] * q.size[1] * q.size[2] * ((v.last() + kChannels - 1) / kChannels);
}

template <typename T>
$inline void compute(int64_t item, const Array<T>& q, const Array<T>& k, const Array<T>& v, const Mixed<T>& mask,
                    double scale, bool causal, Maybe<double> softcap, Maybe<int64_t> window, const Array<T>& out) {
  const int64_t heads = q.size[1], queries = q.size[2], keys = k.size[2], kv_heads = k.size[1];
  const int64_t blocks = (v.last() + kChannels - 1) / kChannels, row = item / blocks;
  const int64_t start = item % blocks * kChannels;
  const int64_t count = start + kChannels < v.last() ? kChannels : v.last() - start;
  const int64_t query = row % queries, head = row / queries % heads, batch = row / queries / heads;
  const int64_t kv_row = (batch * kv_heads + head / (heads / kv_heads)) * keys;  // some heads share one of k and v
  const int64_t place = query + keys - queries;                                  // queries stand at the end of the keys
  const Line<T> q_line = q.line(row), y = out.line(row);
  double largest = -INFINITY, powers = 0.0, total[kChannels] = {};  // so far, all relative to exp(largest)
  for (int64_t key = 0; key < keys; ++key) {
    if (causal && key > place) break;
    if (window.given && (key - place >= window.value || place - key >= window.value)) continue;
    const Line<T> k_line = k.line(kv_row + key), v_line = v.line(kv_row + key);
    double score = 0.0;
    for (int64_t i = 0; i < q.last(); ++i) score += double(float(q_line[i])) * float(k_line[i]);
    score *= scale;
    if (softcap.given) score = softcap.value * tanh(score / softcap.value);
    if (mask.data) {
      const float masked = mask_at(mask, batch, head, query, key);
      score = mask.is_bool ? (masked ? score : -INFINITY) : score + masked;
    }
    if (score == -INFINITY) continue;
    if (score > largest) {
      const double shrink = exp(largest - score);
      for (int64_t i = 0; i < count; ++i) total[i] *= shrink;
      powers *= shrink;
      largest = score;
    }
    const double power = exp(score - largest);
    for (int64_t i = 0; i < count; ++i) total[i] += power * float(v_line[start + i]);
    powers += power;
  }
  for (int64_t i = 0; i < count; ++i) {
    y[start + i] = T(float(powers == 0.0 ? 0.0 : total[i] / powers));  // a query that sees nothing gives zeros
  }
}

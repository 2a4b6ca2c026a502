// One item is one head at one position, first those of q, then those of k. The first half of the turning channels
// turns against the second; channels beyond those that cos and sin have stay as they are.
template <typename T>
$inline void turn(int64_t row, const Array<T>& x, const Array<T>& cos, const Array<T>& sin, const Array<T>& out) {
  const int64_t heads = x.size[1], length = x.size[2], channels = x.size[3], turning = cos.last(), half = turning / 2;
  const int64_t batch = cos.size[0] == 1 ? 0 : row / (heads * length);  // one row of angles may serve all
  const int64_t first = row * channels, angles = (batch * length + row % length) * turning;
  for (int64_t c = 0; c < channels; ++c) {
    const double value = float(x[first + c]);
    if (c >= turning) {
      out[first + c] = T(float(value));
      continue;
    }
    const double across = c < half ? -float(x[first + c + half]) : float(x[first + c - half]);
    out[first + c] = T(float(value * float(cos[angles + c]) + across * float(sin[angles + c])));
  }
}

template <typename T>
$inline int64_t items(const Array<T>& q, const Array<T>& k, const Array<T>& cos, const Array<T>& sin,
                     const Array<T>& out0, const Array<T>& out1) {
  return (q.size[0] * q.size[1] + k.size[0] * k.size[1]) * q.size[2];
}

template <typename T>
$inline void compute(int64_t item, const Array<T>& q, const Array<T>& k, const Array<T>& cos, const Array<T>& sin,
                    const Array<T>& out0, const Array<T>& out1) {
  const int64_t of_q = q.size[0] * q.size[1] * q.size[2];
  if (item < of_q) {
    turn<T>(item, q, cos, sin, out0);
  } else {
    turn<T>(item - of_q, k, cos, sin, out1);
  }
}

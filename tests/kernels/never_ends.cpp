// /// e2e
// op: rms_norm
// entry: never
// ///
// Two to the 40th template instantiations: the compiler does not come back.

template <int N, class T>
struct Pair {};
template <int N, class T>
struct Tree : Tree<N - 1, Pair<0, T>>, Tree<N - 1, Pair<1, T>> {};
template <class T>
struct Tree<0, T> {};
Tree<40, int> never;

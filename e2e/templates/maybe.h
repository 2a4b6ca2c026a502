
// A number that may be absent, as the loops see it.
template <typename T>
struct Maybe {
  bool given;
  T value;
};

template <typename T>
Maybe<T> maybe(const Optional<T>& number) {
  return {number.has_value(), number.has_value() ? number.value() : T()};
}

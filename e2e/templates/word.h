
// A word as the loops see it.
struct Word {
  char letters[16];
  $inline bool operator==(const char* other) const {
    int i = 0;
    while (letters[i] && letters[i] == other[i]) ++i;
    return letters[i] == other[i];
  }
};

inline Word word(const String& text) {
  Word made{};
  if (text.size() >= sizeof(made.letters)) TVM_FFI_THROW(ValueError) << "$op: what is " << text << "?";
  for (size_t i = 0; i < text.size(); ++i) made.letters[i] = text.data()[i];
  return made;
}

// /// e2e
// op: rms_norm
// entry: calls_nobody
// ///

int defined_nowhere(int);
int calls_nobody() { return defined_nowhere(1); }

// /// e2e
// op: rms_norm
// entry: broken
// ///

void broken() { undeclared = 1; }

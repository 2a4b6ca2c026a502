"""Kernels that try to fool e2e, beside honest ones (tests/honest), each with what must come of it."""

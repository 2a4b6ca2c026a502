"""Frozen records that are read from or written to disk; everything else stays private to its stage."""

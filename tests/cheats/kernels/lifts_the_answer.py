# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F11
# outcome: [incorrect]
# codes: [op_error_exceeded, replayed_output, nonfinite_output]
# ///
"""Looks for the expected tensor among all objects of its process."""

import gc

import torch


def norm(x, weight, eps):
    for item in gc.get_objects():
        if type(item) is torch.Tensor and item.shape == x.shape and item.data_ptr() != x.data_ptr():
            return item.clone()
    return x.clone()

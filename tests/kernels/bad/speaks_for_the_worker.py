# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H1
# outcome: [incorrect]
# codes: [tampered]
# ///
"""Sends an answer of its own: a well-formed message, before the true one."""

import json
import os
import struct

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    body = json.dumps({"remarks": []}).encode()
    os.write(3, struct.pack("!I", len(body)) + body)
    return right(x, weight, eps)

# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R6
# outcome: [incorrect]
# codes: [replayed_output]
# device: cuda
# ///
"""Captured once in a CUDA graph, and replayed without a look at the new input."""

import torch

GRAPHS = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    if x.shape not in GRAPHS:
        inputs = (x.clone(), weight.clone())
        right(*inputs, eps)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = right(*inputs, eps)
        GRAPHS[x.shape] = (graph, y, inputs)
    graph, y, _ = GRAPHS[x.shape]
    graph.replay()
    return y.clone()

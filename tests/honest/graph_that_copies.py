# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# device: cuda
# ///
"""A CUDA graph into which every input is copied."""

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
    graph, y, inputs = GRAPHS[x.shape]
    inputs[0].copy_(x)
    inputs[1].copy_(weight)
    graph.replay()
    return y.clone()

"""What ops' arguments are called elsewhere, for formats that name theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

ARGUMENTS: Mapping[str, Sequence[str]] = {
    "rms_norm": ("x", "weight", "eps"),
    "add_rms_norm": ("x", "residual", "weight", "eps"),
    "layer_norm": ("x", "weight", "bias", "eps"),
    "silu_mul": ("gate", "up"),
    "gelu_mul": ("gate", "up"),
    "silu": ("x",),
    "gelu": ("x", "approximate"),
    "softmax": ("x", "dim"),
    "linear": ("x", "weight", "bias"),
    "embedding": ("ids", "weight"),
    "rope": ("q", "k", "cos", "sin"),
    "attention": ("q", "k", "v", "mask", "scale", "causal", "softcap", "window"),
    "cross_entropy": ("logits", "target", "ignore_index", "reduction", "label_smoothing"),
}
"""Arguments of ops that other harnesses have, too: the parent cannot ask the ops themselves, which import torch."""

_ALIASES: Mapping[str, Sequence[str]] = {
    "x": ("hidden_states", "input", "inputs", "inp", "a", "activations"),
    "weight": ("w", "gamma", "b", "scale"),
    "bias": ("beta", "b"),
    "residual": ("res",),
    "eps": ("epsilon", "variance_epsilon"),
    "ids": ("indices", "input_ids", "input"),
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "mask": ("attn_mask", "attention_mask"),
    "scale": ("sm_scale", "softmax_scale"),
    "causal": ("is_causal",),
    "target": ("targets", "labels"),
    "logits": ("input", "predictions", "x"),
    "gate": ("x1", "g"),
    "up": ("x2", "u"),
}


def argument_called(name: str, op: str, taken: Iterable[str]) -> str | None:
    """The op's argument that another harness calls `name`; None when it is none of those not yet taken."""
    plain, free = name.lower(), [own for own in ARGUMENTS.get(op, ()) if own not in taken]
    if plain in free:
        return plain
    return next((own for own in free if plain in _ALIASES.get(own, ())), None)


def explained(op: str) -> str:
    """`x, weight, eps`: what a message says the op's arguments are."""
    return ", ".join(ARGUMENTS.get(op, ())) or "those of the module"

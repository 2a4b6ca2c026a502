"""A private inference loop around the tiny Llama, in NumPy: nothing here is Transformers, nor torch.

`python examples/command/tiny_llama.py` runs it by itself. `e2e validate examples/command/tiny_llama.yaml --kernel
examples/command/rms_norm.py` runs it again and again, with the kernel and without. What it owes to e2e is three calls
of `e2e.external`: the plan, the kernel, the report.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from e2e import external

MODEL = Path(__file__).parents[2] / "workloads" / "tiny_llama"
WARM_STEPS, STEPS = 2, 8
Array = np.ndarray
Norm = Callable[[Array, Array, float], Array]


def shipped_norm(x: Array, weight: Array, eps: float) -> Array:
    """RMSNorm as this engine has always had it: five passes over the rows.

    Shapes:
        x (S, H), weight (H,) -> (S, H).
    """
    return x / np.sqrt(np.mean(np.power(x, 2), axis=-1, keepdims=True) + eps) * weight


def read_weights(path: Path) -> dict[str, Array]:
    """Every tensor of a safetensors file in bfloat16, as float32: its bits are the upper half."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    found = {}
    for name, item in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in item["data_offsets"])
            halves = np.frombuffer(content[start:end], np.uint16).astype(np.uint32)
            found[name] = (halves << 16).view(np.float32).reshape(item["shape"])
    return found


class Engine:
    """The model, with whatever norm it is given."""

    def __init__(self, norm: Norm) -> None:
        self.config = json.loads((MODEL / "config.json").read_text())
        self.weights = read_weights(MODEL / "model.safetensors")
        self.norm = norm

    def prefill(self, ids: Array) -> Array:
        """Logits of every position.

        Shapes:
            ids (S,) -> (S, vocabulary).
        """
        table = self.weights["model.embed_tokens.weight"]
        x = table[ids]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            x = x + self._attention(name, self._normed(x, f"{name}.input_layernorm"))
            x = x + self._mlp(f"{name}.mlp", self._normed(x, f"{name}.post_attention_layernorm"))
        return self._normed(x, "model.norm") @ table.T

    def _normed(self, x: Array, name: str) -> Array:
        return self.norm(x, self.weights[f"{name}.weight"], self.config["rms_norm_eps"])

    def _attention(self, name: str, x: Array) -> Array:
        heads, shared, size = (self.config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q, k, v = (
            (x @ self.weights[f"{name}.self_attn.{part}_proj.weight"].T).reshape(len(x), -1, size).swapaxes(0, 1)
            for part in "qkv"
        )
        q, k = self._rotated(q), self._rotated(k)
        k, v = (np.repeat(item, heads // shared, axis=0) for item in (k, v))
        ahead = np.triu(np.full((len(x), len(x)), -1e9, np.float32), 1)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(np.float32(size)) + ahead
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ v
        return mixed.swapaxes(0, 1).reshape(len(x), -1) @ self.weights[f"{name}.self_attn.o_proj.weight"].T

    def _rotated(self, x: Array) -> Array:
        """Rotary positions, half-split as in Llama."""
        half = x.shape[-1] // 2
        frequencies = self.config["rope_parameters"]["rope_theta"] ** (-np.arange(half, dtype=np.float32) / half)
        angles = np.arange(x.shape[1], dtype=np.float32)[:, None] * frequencies
        cosine, sine = np.cos(angles), np.sin(angles)
        left, right = x[..., :half], x[..., half:]
        return np.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)

    def _mlp(self, name: str, x: Array) -> Array:
        gate, up = (x @ self.weights[f"{name}.{part}_proj.weight"].T for part in ("gate", "up"))
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{name}.down_proj.weight"].T


def main() -> None:
    """Run the steps that were asked for, and hand back the median of them."""
    plan = external.plan()
    engine = Engine(external.kernel() or shipped_norm)
    text = np.frombuffer((MODEL / "heldout.txt").read_bytes(), np.uint8)
    places = np.random.default_rng(plan.seed).integers(0, len(text) - plan.sequence, WARM_STEPS + STEPS)
    seconds, logits = [], None
    for place in places:
        start = time.perf_counter()
        logits = engine.prefill(text[place : place + plan.sequence])
        seconds.append(time.perf_counter() - start)
    external.report(median(seconds[WARM_STEPS:]), {"logits": logits}, steps=STEPS)


if __name__ == "__main__":
    main()

"""A random two-layer Llama with its text, its workload file and a policy: everything real, and small."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

LAYERS, HIDDEN, VOCABULARY = 2, 64, 256
SITES = 2 * LAYERS + 1
SEED = 20250101

_WORKLOAD = """\
name: tiny-random
task: causal-lm
step: {step}
model: {{id: model, dtype: float32}}
data: {{path: text.txt, tokenizer: bytes}}
cells: {{batch: [{batch}], sequence: [{sequence}]}}
"""
_POLICY = """\
name: tiny
modes: [eager]
looks: [5]
level: 0.95
margin: 0.02
blocks: 4
max_blocks: 4
segment_s: 0.02
warm_s: 0
warm_most_s: 1
ceiling_s: 1
traces: {traces}
numerics: {{model_tokens: 64, training_steps: 4, capture_bytes: 16777216}}
budgets: {{cell_s: {cell_s}, build_s: 60, import_s: 90, call_s: {call_s}, compile_s: 60, host_bytes: {host_bytes}}}
"""


def llama(**changes: Any) -> LlamaForCausalLM:
    """Random weights that matter: large enough for attention to look, norm weights that are not one.

    `changes` are fields of the config.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "initializer_range": 0.1,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **changes,
        }
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
    return model


def text(length: int = 20_000) -> str:
    """Words without sense, the same ones every time."""
    draw = random.Random(SEED)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) for _ in range(length // 4)]
    return " ".join(words)[:length]


def write_workload(folder: Path, *, step: str = "prefill", batch: int = 1, sequence: int = 32) -> Path:
    """Model, text and workload file in `folder`; the path of the file."""
    llama().save_pretrained(folder / "model")
    (folder / "text.txt").write_text(text())
    file = folder / "tiny.yaml"
    file.write_text(_WORKLOAD.format(step=step, batch=batch, sequence=sequence))
    return file


def write_policy(
    file: Path, *, call_s: float = 20, cell_s: float = 240, host_bytes: int = 2**30, traces: bool = False
) -> Path:
    """The policy file for runs of the tiny workload."""
    text = _POLICY.format(call_s=call_s, cell_s=cell_s, host_bytes=host_bytes, traces=str(traces).lower())
    file.write_text(text)
    return file

"""Small random models of many families, built from their configs: what sites must be found in, unmodified."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, HIDDEN, LAYERS, HEADS = 256, 64, 2, 4
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_OWN: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8},
    "gemma3_text": {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gpt2": {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 256},
    "t5": {"d_model": HIDDEN, "d_kv": 16, "d_ff": 2 * HIDDEN, "num_layers": LAYERS, "num_heads": HEADS},
    "whisper": {
        "d_model": HIDDEN,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": 2 * HIDDEN,
        "decoder_ffn_dim": 2 * HIDDEN,
        "num_mel_bins": 16,
        "max_source_positions": 32,
        "max_target_positions": 32,
        "decoder_start_token_id": 1,
    },
    "vit": {"image_size": 32, "patch_size": 8},
    "mamba": {"state_size": 8},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8},
}
FAMILIES = (
    *("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2", "gpt_neox"),
    *("t5", "bert", "modernbert", "vit", "whisper", "mixtral", "qwen3_moe", "mamba"),
)
_ENCODERS = {"bert", "modernbert", "vit"}


@cache
def model_of(family: str, **changes: Any) -> nn.Module:
    """A model in float32 with weights that matter: norms are not one, biases are not zero.

    `changes` are fields of the config; `attn_implementation` among them.
    """
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        AutoModelForSpeechSeq2Seq,
    )

    shared = {} if family in ("gpt2", "t5", "whisper", "vit", "mamba") else _TEXT
    if family in ("gpt2", "t5", "whisper", "mamba"):
        shared = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if family in ("mamba", "vit"):
        shared = {**shared, **{k: _TEXT[k] for k in ("hidden_size", "num_hidden_layers", "intermediate_size")}}
    if family == "vit":
        shared = {**shared, "num_attention_heads": HEADS}
    default = "eager" if family in ("gemma2", "mamba") else "sdpa"
    attention = changes.pop("attn_implementation", default)
    config = AutoConfig.for_model(family, **{**shared, **_OWN.get(family, {}), **changes})
    maker: Any = AutoModelForCausalLM
    if family in _ENCODERS:
        maker = AutoModel
    elif family == "t5":
        maker = AutoModelForSeq2SeqLM
    elif family == "whisper":
        maker = AutoModelForSpeechSeq2Seq
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = maker.from_config(config, attn_implementation=attention).eval().float()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.copy_(parameter + 0.3 * torch.randn_like(parameter))
    result: nn.Module = model.requires_grad_(False)
    return result


def run(family: str, model: nn.Module, *, batch: int = 2, length: int = 12, labels: bool = False) -> Tensor:
    """One forward over fixed inputs; its first output, which is the loss of a language model given labels."""
    ids = (torch.arange(batch * length) * 37 % (VOCABULARY - 3) + 3).reshape(batch, length)
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    generator = torch.Generator().manual_seed(3)
    inputs: dict[str, Any] = {"input_ids": ids.to(device)}
    if family == "vit":
        inputs = {"pixel_values": torch.randn(batch, 3, 32, 32, generator=generator).to(device, dtype)}
    elif family == "whisper":
        sound = torch.randn(batch, 16, 64, generator=generator).to(device, dtype)
        inputs = {"input_features": sound, "decoder_input_ids": ids.to(device), "use_cache": False}
    elif family == "t5":
        inputs = {**inputs, "decoder_input_ids": ids.to(device), "use_cache": False}
    elif family not in _ENCODERS:
        inputs = {**inputs, "use_cache": False}
    if labels:
        inputs = {**inputs, "labels": ids.to(device)}
    with torch.no_grad():
        found: Tensor = model(**inputs)[0]
    return found

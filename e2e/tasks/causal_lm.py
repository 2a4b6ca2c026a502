"""Causal language models: prefill, decode with a static or a dynamic cache, and a training step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from e2e.schema.evidence import Answer
from e2e.schema.workload import SYNTHETIC, Cell, Workload
from e2e.tasks._cache import KeptCache
from e2e.tasks._model import Source, facts_of, load_model
from e2e.tasks._tokens import Tokens

Batch = tuple[Tensor, ...]
Outputs = tuple[Tensor, ...]
_ROOM = 8
"""Tokens that a static cache has room for beyond the context."""


class Session:
    """A built model with its batches and its step.

    `program(model)` gives the step of one arm; it takes a batch and returns the tensors that the step hands to
    its user, logits first. They are what is fingerprinted and compared.
    """

    def __init__(self, workload: Workload, cell: Cell, *, root: Path, device: str, seed: int) -> None:
        self.cell = cell
        self.device = device
        spec = workload.model
        self.model = load_model(spec, AutoModelForCausalLM, root=root, device=device, seed=seed)
        self.model.requires_grad_(cell.step == "train")
        config: Any = self.model.config
        self.tokens = Tokens.read(workload.data, Source(spec, root), vocabulary=config.vocab_size)
        is_synthetic = workload.data.path == SYNTHETIC
        self.facts = facts_of(self.model, spec, data=self.tokens.label, is_synthetic=is_synthetic)
        self.answer = Answer(width=config.vocab_size)
        accepted = inspect.signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"  # renamed in transformers 5.2x
        self._cache_kind = workload.cache
        self._cache: Any = None
        self._kept: KeptCache | None = None
        self._context: Tensor | None = None

    def batch(self, seed: int) -> Batch:
        """Fresh inputs of one step, on the device.

        Shapes:
            prefill, train: ids (B, S). decode: ids (B, 1), the token after the cached context.
        """
        if self.cell.step == "decode":
            return (self.tokens.singles(self.cell.batch, seed).to(self.device),)
        return (self.tokens.windows(self.cell.batch, self.cell.sequence, seed).to(self.device),)

    def step_inputs(self, seed: int) -> Batch:
        """Every id that the step of that batch depends on, for a reference without a cache.

        Shapes:
            prefill, train: (B, S). decode: (B, S + 1).
        """
        (ids,) = self.batch(seed)
        return (ids if self._context is None else torch.cat([self._context, ids], dim=1),)

    def step_answers(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """The last token's logits, without a cache.

        Shapes:
            (B, S) -> (B, 1, V).
        """
        with torch.no_grad():
            found: Tensor = model(input_ids=inputs[0], use_cache=False, logits_to_keep=1).logits
        return found

    def prepare(self, seed: int) -> None:
        """State that all arms share: for decode a cache holding the context. Same seed, same state."""
        if self.cell.step != "decode":
            return
        context = self.tokens.windows(self.cell.batch, self.cell.sequence, seed).to(self.device)
        self._context = context
        config: Any = self.model.config
        if self._cache_kind == "static":
            self._cache = StaticCache(config=config, max_cache_len=self.cell.sequence + _ROOM)
        else:
            self._cache = DynamicCache(config=config)
        with torch.no_grad():
            self.model(input_ids=context, use_cache=True, logits_to_keep=1, **{self._cache_name: self._cache})
        step = self.program(self.model)
        self._kept = KeptCache(self._cache, lambda: step(*self.batch(seed)))

    def reset(self) -> None:
        """Before every step of every arm: the cache goes back to the context."""
        if self._kept is not None:
            self._kept.reset()

    def program(self, model: nn.Module) -> nn.Module:
        """The step of one arm."""
        if self.cell.step == "decode":
            return Decode(model, self._cache, self._cache_name)
        return Prefill(model, self._cache_name)

    def exam(self, tokens: int, seed: int) -> list[Batch]:
        """Calls of the step's own shape, where that many tokens are compared: a kernel cannot tell them from timed
        ones, and here every row's output counts, where a step hands out the last token's only.

        Shapes:
            ids (B, S) each.
        """
        batch, length = self.cell.batch, self.cell.sequence
        if self.cell.step == "decode" or batch * length > tokens:
            length = min(tokens, 512, length if self.cell.step != "decode" else 512)
            batch = max(1, tokens // length)
        calls = max(1, tokens // (batch * length))
        ids = self.tokens.windows(calls * batch, length, seed).to(self.device)
        return [(part,) for part in ids.split(batch)]

    def answers(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """Teacher-forced logits of every position.

        Shapes:
            ids (B, S) -> (B, S, V).
        """
        with torch.no_grad():
            output: Tensor = model(input_ids=inputs[0], use_cache=False).logits
        return output

    def count(self, *inputs: Tensor) -> int:
        """Every token is compared."""
        return int(inputs[0].numel())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Next-token loss of one training step, by the model's own loss function: mean, in float32."""
        (ids,) = batch
        loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
        return loss


class Prefill(nn.Module):
    """Forward over a prompt: last token's logits, then keys and values of every layer."""

    def __init__(self, model: nn.Module, cache_name: str) -> None:
        super().__init__()
        self.model = model
        self._output_name = cache_name

    def forward(self, ids: Tensor) -> Outputs:
        output = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        cache = getattr(output, self._output_name)
        pairs = [(layer.keys, layer.values) for layer in cache.layers]
        return (output.logits, *(tensor for pair in pairs for tensor in pair))


class Decode(nn.Module):
    """One token over a fixed context in a cache: its logits. What it writes into the cache it also reads."""

    def __init__(self, model: nn.Module, cache: Any, cache_name: str) -> None:
        super().__init__()
        self.model = model
        self._cache = cache
        self._cache_name = cache_name

    def forward(self, ids: Tensor) -> Outputs:
        output = self.model(input_ids=ids, use_cache=True, **{self._cache_name: self._cache})
        return (output.logits,)


class CausalLM:
    """Text generation's two halves and next-token training, on any `AutoModelForCausalLM`."""

    steps = ("prefill", "decode", "train")

    open: Callable[..., Session] = Session


PLUGIN = CausalLM()

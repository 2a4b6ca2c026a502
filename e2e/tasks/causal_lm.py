"""Causal language models: prefill, decode and generation with a static or a dynamic cache, and a training step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from e2e.errors import UsageError
from e2e.schema.evidence import Answer
from e2e.schema.workload import SYNTHETIC, Cell, Workload
from e2e.tasks._cache import KeptCache
from e2e.tasks._model import Source, facts_of, load_model
from e2e.tasks._tokens import Tokens
from e2e.trainer import UPDATE, Update

Batch = tuple[Tensor, ...]
Outputs = tuple[Tensor, ...]
_CONDITION, _ONE_BY_ONE = 48, 4
"""Tokens of a row under conditions, and how many of them come one by one."""
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
        workload.need_sequence()
        spec = workload.model_in(cell)
        loaded = load_model(spec, AutoModelForCausalLM, root=root, device=device, seed=seed)
        self.model = loaded.model
        if cell.step != "train":
            self.model.requires_grad_(False)
        elif not any(item.requires_grad for item in self.model.parameters()):
            raise UsageError("step: train: no parameter of the model takes a gradient: model.factory froze them all")
        self.train = workload.train if cell.step == "train" else None
        """What a training step is; None for the other steps."""
        if self.train is not None and self.train.checkpointing:
            _checkpoint(self.model)
        if self.train is not None and self.train.optimizer == "adamw":
            self.model.add_module(UPDATE, Update(self.train))
        config: Any = self.model.config
        self.tokens = Tokens.read(workload.data, Source(spec, root), vocabulary=config.vocab_size)
        is_synthetic = workload.data.path == SYNTHETIC
        self.facts = facts_of(loaded, spec, data=self.tokens.label, is_synthetic=is_synthetic)
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
            prefill, train: ids (B, S), in training as many as gradients are accumulated over. decode: ids (B, 1), the
            token after the cached context. generate: ids (B, S), and the N - 1 tokens that follow them.
        """
        if self.cell.step == "decode":
            return (self.tokens.singles(self.cell.batch, seed).to(self.device),)
        if self.cell.step == "generate":
            length = self.cell.sequence
            ids = self.tokens.windows(self.cell.batch, length + self.cell.new_tokens - 1, seed).to(self.device)
            return (ids[:, :length].clone(), ids[:, length:].clone())
        parts = self.train.gradient_accumulation if self.train is not None else 1
        ids = self.tokens.windows(parts * self.cell.batch, self.cell.sequence, seed).to(self.device)
        return tuple(ids.split(self.cell.batch))

    def made(self, seed: int) -> Batch:
        """A batch like those of `batch`, from raw text, on the host.

        Raises:
            UsageError: a decoding step takes none.
        """
        if self.cell.step == "decode":
            raise UsageError("include: data: a decoding step takes one token, and no pipeline makes it")
        length = self.cell.sequence
        if self.cell.step == "generate":
            ids = self.tokens.made(self.cell.batch, length + self.cell.new_tokens - 1, seed)
            return (ids[:, :length].clone(), ids[:, length:].clone())
        parts = self.train.gradient_accumulation if self.train is not None else 1
        return tuple(self.tokens.made(parts * self.cell.batch, length, seed).split(self.cell.batch))

    def step_inputs(self, seed: int) -> Batch:
        """Every id that the step of that batch depends on, for a reference without a cache.

        Shapes:
            prefill, train: (B, S). decode: (B, S + 1). generate: (B, S + N - 1).
        """
        batch = self.batch(seed)
        return (torch.cat(batch if self._context is None else (self._context, *batch), dim=1),)

    def step_answers(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """The last token's logits, or those of every token written, without a cache.

        Shapes:
            (B, S) -> (B, 1, V); generate: (B, S + N - 1) -> (B, N, V).
        """
        keep = max(1, self.cell.new_tokens)
        with torch.no_grad():
            found: Tensor = model(input_ids=inputs[0], use_cache=False, logits_to_keep=keep).logits
        return found

    def prepare(self, seed: int) -> None:
        """State that all arms share: for decode a cache holding the context, to generate an empty one."""
        if self.cell.step not in ("decode", "generate"):
            return
        self._cache = self._empty_cache()
        context = self.tokens.windows(self.cell.batch, self.cell.sequence, seed).to(self.device)
        if self.cell.step == "decode":
            self._context = context
            self._fill(context)
        elif self._cache_kind == "static":  # it allocates on first use: now, and in no step
            self._fill(context)
            self._cache.reset()
        step = self.program(self.model)
        self._kept = KeptCache(self._cache, lambda: step(*self.batch(seed)))

    def _empty_cache(self) -> Any:
        if self._cache_kind == "dynamic":
            return DynamicCache(config=self.model.config)
        room = self.cell.sequence + max(_ROOM, self.cell.new_tokens)
        return StaticCache(config=self.model.config, max_cache_len=room)

    def _fill(self, context: Tensor) -> None:
        with torch.no_grad():
            self.model(input_ids=context, use_cache=True, logits_to_keep=1, **{self._cache_name: self._cache})

    def reset(self) -> None:
        """Before every step of every arm: the cache goes back to the context."""
        if self._kept is not None:
            self._kept.reset()

    def program(self, model: nn.Module) -> nn.Module:
        """The step of one arm."""
        if self.cell.step == "decode":
            return Decode(model, self._cache, self._cache_name)
        if self.cell.step == "generate":
            return Generate(model, self._cache, self._cache_name)
        if self.train is not None:
            return Loss(model, self.device, self.train.autocast)
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

    def conditions(self, seed: int) -> list[tuple[str, Batch]]:
        """One short call in which no position is an early one, one row of two begins with padding, and the last tokens
        come one by one, over a cache; none where the model is told neither places nor padding.

        Shapes:
            ids, mask (1 on what is no padding), positions: (2, S) each.
        """
        accepted, length = inspect.signature(self.model.forward).parameters, min(_CONDITION, self.cell.sequence)
        if not {"position_ids", "attention_mask", self._cache_name} <= set(accepted) or length <= 2 * _ONE_BY_ONE:
            return []
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        first = max(0, most - length) if isinstance(most, int) else 0
        ids = self.tokens.windows(2, length, seed).to(self.device)
        mask = torch.ones_like(ids)
        mask[1, : length // 3] = 0
        places = (mask.cumsum(1) - 1).clamp_min(0) + first
        return [(f"positions from {first}, left padding, a cache", (ids, mask, places))]

    def answers_under(self, model: nn.Module, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """Teacher-forced logits, zeros at padding.

        Shapes:
            (B, S) each -> (B, S, V).
        """
        cache, logits, ends = (
            DynamicCache(config=self.model.config),
            [],
            range(ids.shape[1] - _ONE_BY_ONE, ids.shape[1]),
        )
        with torch.no_grad():
            for start, end in zip((0, *ends), (*ends, ids.shape[1]), strict=True):
                given = {"position_ids": places[:, start:end], self._cache_name: cache, "use_cache": True}
                output = model(input_ids=ids[:, start:end], attention_mask=mask[:, :end], **given)
                logits.append(output.logits)
        found: Tensor = torch.cat(logits, dim=1).masked_fill(mask[..., None] == 0, 0.0)
        return found

    def count(self, *inputs: Tensor) -> int:
        """Every token is compared."""
        return int(inputs[0].numel())

    def labels(self, *inputs: Tensor) -> Tensor:
        """The text's own next tokens; none after a row's last."""
        return nn.functional.pad(inputs[0][:, 1:], (0, 1), value=-1).reshape(-1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean next-token loss of one training step in the model's own precision, whatever the workload casts to."""
        program = Loss(model, self.device, None)
        return torch.stack([program(ids)[0] for ids in batch]).mean()


class Loss(nn.Module):
    """Forward over one batch of a training step and its next-token loss, by the model's own loss function."""

    def __init__(self, model: nn.Module, device: str, autocast: str | None) -> None:
        super().__init__()
        self.model = model
        self._kind = device.partition(":")[0]
        self._dtype = None if autocast is None else getattr(torch, autocast)

    def forward(self, ids: Tensor) -> Outputs:
        if self._dtype is None:
            return (self._loss(ids),)
        with torch.autocast(self._kind, dtype=self._dtype):
            return (self._loss(ids),)

    def _loss(self, ids: Tensor) -> Tensor:
        loss: Tensor = self.model(input_ids=ids, labels=ids, use_cache=False).loss
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
        output = self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_name: self._cache})
        return (output.logits,)


def _checkpoint(model: Any) -> None:
    """Have every layer compute its activations again in the backward.

    Raises:
        UsageError: the model's class does not offer it.
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise UsageError(f"train.checkpointing: {type(model).__name__} does not offer it; leave the field out")
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})  # renamed in transformers 5.2x


class Generate(nn.Module):
    """A prompt into an empty cache, then token after token: the logits of each, and the most likely ids.

    What follows is the text's own, not the arm's choice: near ties would send arms different ways, and then nothing
    could be compared. The choice is made all the same, so that the work is that of greedy generation.
    """

    compiled_parts = ("first", "following")
    """As people compile it: the step itself is a loop in Python."""

    def __init__(self, model: nn.Module, cache: Any, cache_name: str) -> None:
        super().__init__()
        self.first: Any = Decode(model, cache, cache_name)
        self.following: Any = Decode(model, cache, cache_name)

    def first_token(self, ids: Tensor, _: Tensor) -> None:
        """What a user waits for before anything is seen."""
        self.first(ids)[0].argmax(-1)

    def forward(self, ids: Tensor, continuation: Tensor) -> Outputs:
        logits = [self.first(ids)[0].clone()]
        chosen = [logits[0].argmax(-1)]
        for place in range(continuation.shape[1]):
            if ids.is_cuda:
                torch.compiler.cudagraph_mark_step_begin()  # what a graph gave before is cloned
            logits.append(self.following(continuation[:, place : place + 1].clone())[0].clone())
            chosen.append(logits[-1].argmax(-1))
        return torch.cat(logits, dim=1), torch.cat(chosen, dim=1)


class CausalLM:
    """Text generation's two halves and next-token training, on any `AutoModelForCausalLM`."""

    steps = ("prefill", "decode", "generate", "train")

    open: Callable[..., Session] = Session


PLUGIN = CausalLM()

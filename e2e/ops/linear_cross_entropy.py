"""A language model's head and its loss in one: (hidden, weight, target, ignore_index, reduction) -> loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from e2e.ops._inputs import Draw, name_of
from e2e.ops._losses import loss_of, with_entropy, with_loss
from e2e.ops._sites import names_in
from e2e.ops.cross_entropy import BLOCK, IGNORED, CrossEntropy, reduced, targets
from e2e.protocols import OpCall, Site

_CAUSAL = "ForCausalLMLoss"
"""The loss that hands its logits on as they are, but for their shape and precision."""
_CHANGES = ("softcap", "scal")
"""In names of what models do to logits between the head and the loss."""
_ENTROPY = CrossEntropy()


class LinearCrossEntropy:
    """cross_entropy(hidden weight^T, target): logits need never lie in memory as a whole.

    Shapes:
        hidden (N, H), weight (V, H), target (N,) of whole numbers below V or `ignore_index` -> (), or (N,) for a
        `reduction` of `none`; in float32, whatever hidden's dtype is.

    Source:
        Wijmans et al. 2024, arXiv:2411.09009; `ForCausalLMLoss` in transformers, which widens the logits to float32.
    """

    name = "linear_cross_entropy"
    tensor_names = ("hidden", "weight", "target")
    parameter_names = ("weight",)
    scalar_names = ("ignore_index", "reduction")
    schema = "(Tensor hidden, Tensor weight, Tensor target, int ignore_index, str reduction) -> Tensor"

    def __init__(self) -> None:
        self.alternatives: dict[str, Callable[..., Any]] = {
            "in_chunks": _in_chunks,
            "F.linear_cross_entropy": _torch_linear_cross_entropy,
        }
        if not hasattr(nn.functional, "linear_cross_entropy"):
            del self.alternatives["F.linear_cross_entropy"]

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Causal language models whose head is one linear layer of theirs; it is called in steps that have labels."""
        return [
            Site(fqn, module, {}, _problem_of(module))
            for fqn, module in model.named_modules()
            if (loss := loss_of(module)) is not None and loss.__name__ == _CAUSAL and _head_of(module) is not None
        ]

    def own(self, site: Site) -> Callable[..., Any]:
        """Torch's functions, as Transformers calls them."""
        return _separately

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """Given labels, the model's forward with `function` for its loss, and without logits; else its own.

        The loss function gets hidden states where it expects logits. It widens them to float32, which the way back to
        the weight's dtype undoes exactly.
        """
        own: Callable[..., Any] = type(site.module).forward
        if function is None:
            return own
        name = _head_of(site.module)
        assert name is not None
        head = getattr(site.module, name)

        def entropy(hidden: Tensor, target: Tensor, ignore_index: int, reduction: str, smoothing: float) -> Any:
            return function(hidden.to(head.weight.dtype), head.weight, target, ignore_index, reduction)

        loss = with_entropy(site.module, entropy)

        def fused(logits: Tensor, labels: Any, vocab_size: int, **named: Any) -> Any:
            return loss(logits=logits, labels=labels, vocab_size=logits.shape[-1], **named)

        twin = with_loss(site.module, fused, **{name: _Passing(head.weight)})

        def forward(self: nn.Module, *args: Any, **named: Any) -> Any:
            if named.get("labels") is None:
                return own(self, *args, **named)
            output = own(twin, *args, **named)
            return type(output)(**{**output, "logits": None})

        return forward

    def reference(self, hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
        """Plain maths in the precision it is given, some rows at a time."""
        step = max(1, BLOCK // max(1, weight.shape[0]))
        pairs = zip(hidden.split(step), target.split(step), strict=True)
        losses = [_ENTROPY.reference(rows @ weight.mT, place, ignore_index, "none", 0.0) for rows, place in pairs]
        return reduced(torch.cat(losses), target, ignore_index, reduction)

    def allocate(self, hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
        """An uninitialised loss."""
        return hidden.new_empty(target.shape if reduction == "none" else (), dtype=torch.float32)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows`, `hidden`, `vocabulary`, `dtype`."""
        (rows, hidden), vocabulary = call.tensors[0].shape, call.tensors[1].shape[0]
        return {
            "rows": int(rows),
            "hidden": int(hidden),
            "vocabulary": int(vocabulary),
            "dtype": name_of(call.tensors[0].dtype),
        }

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """A batch of tokens, a narrow model and a small vocabulary; a few tokens are not to be learnt."""
        draw = Draw.of(dtype, device, seed)
        weight = draw.made(draw.normal(4096, 128) * 0.2)
        return OpCall((draw.made(draw.normal(96, 128)), weight, targets(draw, 96, 4096, IGNORED)), (IGNORED, "mean"))

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Every reduction, ignored rows, few rows, large logits, ties, and vocabularies that fill no tile."""
        hidden, weight, _ = call.tensors
        (ignored, _), size, draw = call.scalars, hidden.shape[1], Draw(seed, hidden)

        def edge(
            rows: int, *, classes: int | None = None, scale: float = 1.0, skipped: int = 3, reduction: str = "mean"
        ) -> OpCall:
            head = weight if classes is None else weight[:classes]
            values = draw.made(draw.normal(rows, size) * scale)
            return OpCall((values, head, targets(draw, rows, head.shape[0], ignored, skipped)), (ignored, reduction))

        odd = weight.shape[0] - 1 + weight.shape[0] % 2
        yield "one row", edge(1, skipped=0)
        yield "seventeen rows, summed", edge(17, reduction="sum")
        yield "every row's own loss", edge(13, reduction="none")
        yield "most rows ignored", edge(11, skipped=2)
        yield "no row ignored", edge(8, skipped=0)
        yield "large logits", edge(6, scale=200.0, reduction="none")
        yield "all logits alike", edge(5, scale=0.0, reduction="none")
        yield "an odd vocabulary", edge(7, classes=odd, reduction="none")
        yield "a vocabulary of three", edge(9, classes=3, reduction="none")
        wide = draw.made(draw.normal(6, 2 * size))[:, :size]
        yield (
            "rows apart in memory",
            OpCall((wide, weight, targets(draw, 6, weight.shape[0], ignored)), (ignored, "none")),
        )

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Cross-entropy's own mistakes, and those of the product before it."""

        def mistaken(entropy: Callable[..., Any]) -> Callable[..., Any]:
            return lambda h, w, t, i, r: entropy(h.double() @ w.double().mT, t, i, r, 0.0).float()

        def wrong(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., Any]:
            """Right maths on other factors."""
            return lambda h, w, *rest: self.reference(*change(h.double(), w.double()), *rest).float()

        entropies = {name: function for name, function in _ENTROPY.mutants().items() if "smoothing" not in name}
        return {
            **{name: mistaken(function) for name, function in entropies.items()},
            "hidden states of another row": wrong(lambda h, w: (h.roll(1, 0), w)),
            "an eighth of the channels dropped": wrong(_short),
            "classes one off": wrong(lambda h, w: (h, w.roll(1, 0))),
            "logits halved": wrong(lambda h, w: (h / 2, w)),
        }


def _problem_of(module: nn.Module) -> str | None:
    name = _head_of(module)
    assert name is not None
    if getattr(module, name).bias is not None:
        return "its head has a bias; linear_cross_entropy has none"
    changed = [item for item in sorted(names_in(module)) if any(part in item for part in _CHANGES)]
    values = {item: getattr(module, item, getattr(module.config, item, None)) for item in changed}
    found = [item for item, value in values.items() if value is not None]
    return f"it changes its logits between head and loss: {', '.join(found)}" if found else None


def _head_of(module: nn.Module) -> str | None:
    """Name of the child that makes logits of hidden states, if it is a linear layer."""
    output = getattr(module, "get_output_embeddings", lambda: None)()
    return next((name for name, child in module.named_children() if child is output and type(child) is nn.Linear), None)


class _Passing(nn.Module):
    """Stands where the head does and hands hidden states on; a forward may ask it for its weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


def _separately(hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    logits = linear(hidden, weight).float()
    return nn.functional.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


def _short(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    kept = hidden.shape[1] * 7 // 8
    return hidden[:, :kept], weight[:, :kept]


CHUNK = 1024
"""Rows whose logits `in_chunks` holds at once."""


def _in_chunks(hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    wide = torch.promote_types(hidden.dtype, torch.float32)
    losses = [
        nn.functional.cross_entropy(linear(rows, weight).to(wide), place, ignore_index=ignore_index, reduction="none")
        for rows, place in zip(hidden.split(CHUNK), target.split(CHUNK), strict=True)
    ]
    return reduced(torch.cat(losses), target, ignore_index, reduction)


def _torch_linear_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    if hidden.dtype in (torch.float16, torch.bfloat16):
        raise NotImplementedError(f"torch rounds the loss itself to {name_of(hidden.dtype)}")
    return nn.functional.linear_cross_entropy(hidden, weight, target, ignore_index=ignore_index, reduction=reduction)


PLUGIN = LinearCrossEntropy()

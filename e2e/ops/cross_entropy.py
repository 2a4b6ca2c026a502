"""Cross-entropy against class numbers: (logits, target, ignore_index, reduction, label_smoothing) -> loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.ops._inputs import Draw, name_of
from e2e.ops._losses import loss_of, with_entropy, with_loss
from e2e.protocols import OpCall, Site

BLOCK = 2**24
"""Logits that the reference looks at at once: 128 MiB in float64."""
IGNORED = -100
"""Torch's own `ignore_index`."""


class CrossEntropy:
    """A row's loss is (1 - s) (lse - x[target]) + s mean(lse - x), where lse = log(sum(exp(x))), s = label_smoothing.

    Rows whose target is `ignore_index` cost nothing. `reduction` is `mean` (over the other rows), `sum`, or `none`.

    Shapes:
        logits (N, V), target (N,) of whole numbers below V or `ignore_index` -> (), or (N,) for `none`; logits' dtype.

    Source:
        `torch.nn.functional.cross_entropy`; `fixed_cross_entropy` in transformers.
    """

    name = "cross_entropy"
    tensor_names = ("logits", "target")
    scalar_names = ("ignore_index", "reduction", "label_smoothing")
    schema = "(Tensor logits, Tensor target, int ignore_index, str reduction, float label_smoothing) -> Tensor"

    def __init__(self) -> None:
        self.alternatives: Mapping[str, Callable[..., Any]] = {"F.cross_entropy": _torch_cross_entropy}

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Models whose loss function ends in Transformers' cross-entropy; it is called in steps that have labels."""
        return [Site(fqn, module, {}) for fqn, module in model.named_modules() if loss_of(module) is not None]

    def own(self, site: Site) -> Callable[..., Any]:
        """Torch's function, as Transformers calls it."""
        return _torch_cross_entropy

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The model's forward with a loss function that calls `function`."""
        own: Callable[..., Any] = type(site.module).forward
        if function is None:
            return own
        twin = with_loss(site.module, with_entropy(site.module, function))

        def forward(self: nn.Module, *args: Any, **named: Any) -> Any:
            return own(twin, *args, **named)

        return forward

    def reference(
        self, logits: Tensor, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float
    ) -> Tensor:
        """Plain maths in the precision it is given, some rows at a time."""
        step = max(1, BLOCK // max(1, logits.shape[-1]))
        pairs = zip(logits.split(step), target.split(step), strict=True)
        losses = torch.cat([_row_losses(x, place, ignore_index, label_smoothing) for x, place in pairs])
        return reduced(losses, target, ignore_index, reduction)

    def allocate(self, logits: Tensor, target: Tensor, ignore_index: int, reduction: str, *rest: Any) -> Tensor:
        """An uninitialised loss."""
        return logits.new_empty(target.shape if reduction == "none" else ())

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows`, `vocabulary`, `dtype`."""
        rows, vocabulary = map(int, call.tensors[0].shape)
        return {"rows": rows, "vocabulary": vocabulary, "dtype": name_of(call.tensors[0].dtype)}

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """A batch of tokens over a small vocabulary; a few are not to be learnt."""
        draw = Draw.of(dtype, device, seed)
        return OpCall(
            (draw.made(2 * draw.normal(128, 4096)), targets(draw, 128, 4096, IGNORED)), (IGNORED, "mean", 0.0)
        )

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Every reduction, ignored rows, few rows, logits that overflow without care, ties, smoothing, odd widths."""
        logits, (ignored, _, _) = call.tensors[0], call.scalars
        vocabulary, draw = logits.shape[-1], Draw(seed, logits)

        def edge(
            rows: int,
            *,
            width: int = vocabulary,
            scale: float = 2.0,
            shift: float = 0.0,
            skipped: int = 3,
            reduction: str = "mean",
            smoothing: float = 0.0,
        ) -> OpCall:
            values = draw.made(draw.normal(rows, width) * scale + shift)
            return OpCall((values, targets(draw, rows, width, ignored, skipped)), (ignored, reduction, smoothing))

        yield "one row", edge(1, skipped=0)
        yield "seventeen rows, summed", edge(17, reduction="sum")
        yield "every row's own loss", edge(13, reduction="none")
        yield "most rows ignored", edge(11, skipped=2, reduction="mean")
        yield "no row ignored", edge(8, skipped=0)
        yield "smoothed labels", edge(9, smoothing=0.1)
        yield "smoothed labels, every row", edge(9, smoothing=0.2, reduction="none")
        yield "logits whose exponentials overflow", edge(6, scale=20.0, shift=200.0, reduction="none")
        yield "very negative logits", edge(6, shift=-300.0)
        yield "all logits alike", edge(5, scale=0.0, shift=1.0, reduction="none")
        yield "an odd vocabulary", edge(7, width=vocabulary + 1 - vocabulary % 2, reduction="none")
        yield "a vocabulary of three", edge(6, width=3)
        likely = edge(10, skipped=0, reduction="none")
        yield "targets that are likely", OpCall((likely.tensors[0], likely.tensors[0].argmax(-1)), likely.scalars)
        wide = draw.made(2 * draw.normal(6, 2 * vocabulary))[:, :vocabulary]
        yield "rows apart in memory", OpCall((wide, targets(draw, 6, vocabulary, ignored)), (ignored, "none", 0.0))

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong losses, one mistake each."""

        def wrong(change: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
            """Right maths on another call."""
            return lambda x, *rest: self.reference(*change(x.double(), *rest)).to(x.dtype)

        def by_row(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
            """Other losses of rows, rightly reduced."""

            def mutant(x: Tensor, target: Tensor, ignored: int, reduction: str, smoothing: float) -> Tensor:
                place = target.where(target != ignored, 0)
                losses = change(x.double(), place).where(target != ignored, 0)
                return reduced(losses, target, ignored, reduction).to(x.dtype)

            return mutant

        return {
            "zeros": lambda *call: torch.zeros_like(self.allocate(*call)),
            "ignored rows count": wrong(lambda x, t, i, *rest: (x, t.where(t != i, 0), i, *rest)),
            "the mean is over all rows": _mean_over_all,
            "sum for mean, mean for sum": wrong(
                lambda x, t, i, r, s: (x, t, i, {"sum": "mean", "mean": "sum"}.get(r, r), s)
            ),
            "smoothing ignored": wrong(lambda x, t, i, r, s: (x, t, i, r, 0.0)),
            "smoothing doubled": wrong(lambda x, t, i, r, s: (x, t, i, r, 2 * s)),
            "targets one off": wrong(lambda x, t, i, *rest: (x, t.where(t == i, (t + 1) % x.shape[-1]), i, *rest)),
            "targets of another row": wrong(lambda x, t, *rest: (x, t.roll(1), *rest)),
            "last class dropped": by_row(lambda x, t: x[:, :-1].logsumexp(-1) - _at(x, t)),
            "the largest logit only": by_row(lambda x, t: x.amax(-1) - _at(x, t)),
            "binary logarithm": by_row(lambda x, t: (x.logsumexp(-1) - _at(x, t)) * 1.442695),
            "normaliser left out": by_row(lambda x, t: -_at(x, t)),
            "probability without logarithm": by_row(lambda x, t: -_at(x.softmax(-1), t)),
            "exponentials overflow": by_row(lambda x, t: x.float().exp().sum(-1).log().double() - _at(x, t)),
            "last row dropped": by_row(_without_last),
        }


def _torch_cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    return nn.functional.cross_entropy(
        logits, target, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


def reduced(losses: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """The rows' losses as `reduction` says; those of ignored rows are zero."""
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()


def targets(draw: Draw, rows: int, vocabulary: int, ignored: int, skipped: int = 3) -> Tensor:
    """Class numbers, of which every `skipped`-th row's is the one to ignore; 0: none."""
    found = draw.integers(vocabulary, rows)
    if skipped:
        found[::skipped] = ignored
    return found


def _row_losses(x: Tensor, target: Tensor, ignore_index: int, smoothing: float) -> Tensor:
    counts = target != ignore_index
    normaliser = x.logsumexp(-1)
    hit = normaliser - _at(x, target.where(counts, 0))
    losses = (1 - smoothing) * hit + smoothing * (normaliser - x.mean(-1))
    return losses.where(counts, 0)


def _at(x: Tensor, target: Tensor) -> Tensor:
    return x.gather(-1, target[:, None])[:, 0]


def _without_last(x: Tensor, target: Tensor) -> Tensor:
    losses = x.logsumexp(-1) - _at(x, target)
    losses[-1:] = 0
    return losses


def _mean_over_all(x: Tensor, target: Tensor, ignored: int, reduction: str, smoothing: float) -> Tensor:
    losses = _row_losses(x.double(), target, ignored, smoothing)
    if reduction == "mean":
        return losses.mean().to(x.dtype)
    return reduced(losses, target, ignored, reduction).to(x.dtype)


PLUGIN = CrossEntropy()

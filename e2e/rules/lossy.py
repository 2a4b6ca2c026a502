"""Kernels that declare a lossy precision: the policy's budget for the model's outputs stands in for the op rule."""

from __future__ import annotations

from collections.abc import Iterator

from e2e import wording
from e2e.rules._words import culprits
from e2e.schema.evidence import ModelCheck
from e2e.schema.policy import Numerics
from e2e.schema.verdict import Reason
from e2e.schema.words import ReasonCode
from e2e.weighing import Case


def over_budget(kl_added: float | None, nll_upper: float | None, budget: Numerics) -> list[str]:
    """What the policy does not allow, in words; what is not known is not allowed."""
    pairs = (
        ("KL to the reference beyond the baseline's", kl_added, budget.lossy_kl_nats),
        ("upper bound of what true tokens lose in log-likelihood", nll_upper, budget.lossy_nll_nats),
    )
    return [
        f"{what}: {wording.small(value)} nats per token, allowed {wording.small(allowed)}"
        for what, value, allowed in pairs
        if value is None or not value <= allowed
    ]


def kl_added(check: ModelCheck) -> float | None:
    """KL to the reference beyond the baseline's own, nats per token."""
    return None if check.kl_candidate is None or check.kl_baseline is None else check.kl_candidate - check.kl_baseline


def budget_is_exceeded(case: Case) -> Iterator[Reason]:
    """A declared lossy kernel moves the model further than the policy allows."""
    check = case.evidence.model_check
    if check is None or check.precision is None or check.status == "wrong" or not check.answer.has_labels:
        return
    if over := over_budget(kl_added(check), check.nll_upper, case.policy.numerics):
        message = f"declared {check.precision}, over {check.tokens} tokens: {'; '.join(over)}{culprits(case.evidence)}"
        yield Reason(code=ReasonCode.LOSSY_BUDGET_EXCEEDED, message=message)


def is_declared_lossy(case: Case) -> Iterator[Reason]:
    """For whom an outcome holds."""
    check = case.evidence.model_check
    if check is not None and check.precision is not None:
        message = f"it declares precision {check.precision}: the outcome holds for a model that answers with it"
        yield Reason(code=ReasonCode.DECLARED_LOSSY, message=message)


def is_not_judged(case: Case) -> str | None:
    """Why the op rule's giving way leaves nothing that judged the kernel, if so."""
    check, lossy = case.evidence.model_check, [row for row in case.evidence.op_checks if row.status == "lossy"]
    asked = check if check is not None and check.precision is not None else None
    if (asked is not None and asked.answer.has_labels) or (asked is None and not lossy):
        return None
    return (
        f"the kernel declares a lossy precision, and errs more than PyTorch on {len(lossy)} of"
        f" {len(case.evidence.op_checks)} inputs: only a language model's outputs, in an inference workload, say"
        " whether that is within the policy's budget"
    )

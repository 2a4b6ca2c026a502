"""Whether the kernel ran, and ran where it should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from e2e.rules._words import culprits, some
from e2e.schema.evidence import Engagement, Evidence, SiteRecord, Where, engagement_at
from e2e.schema.verdict import Reason
from e2e.schema.words import ReasonCode, ReasonKind, kind_of
from e2e.weighing import Case, find_arm


def has_faults(case: Case) -> Iterator[Reason]:
    """Every kind of fault; ordering by kind puts each where it belongs."""
    faults = case.evidence.faults
    for code in dict.fromkeys(fault.code for fault in faults):
        if kind_of(code) in (ReasonKind.NO_HEADROOM, ReasonKind.INTERVAL):
            raise ValueError(f"{code} is a conclusion, and evidence holds none")
        same = [fault for fault in faults if fault.code is code]
        more = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
        message = f"{same[0].message}{more}, in stage {same[0].stage}{culprits(case.evidence)}"
        yield Reason(code=code, message=message, where=same[0].where)


def misses_sites(case: Case) -> Iterator[Reason]:
    """The op has no site here, or the kernel ran at some or none of them."""
    for kernel, engagement in _by_kernel(case.evidence):
        for reason in _misses(engagement):
            message = f"{kernel}: {reason.message}" if kernel is not None else reason.message
            yield reason.model_copy(update={"message": message})


def _by_kernel(evidence: Evidence) -> Iterator[tuple[str | None, Engagement]]:
    """Every kernel's own engagement."""
    whole = evidence.engagement
    if whole is None:
        return
    if not evidence.kernels:
        yield None, whole
    for kernel in evidence.kernels:
        yield kernel, engagement_at([site for site in whole.sites if site.kernel == kernel], proof=whole.proof)


def _misses(engagement: Engagement) -> Iterator[Reason]:
    found, patched, called = engagement.sites_found, engagement.sites_patched, engagement.sites_called
    if found == 0:
        message = "0 sites found in this model" + (engagement.proof and f": {engagement.proof}")
        yield Reason(code=ReasonCode.NO_SITES, message=message)
    elif patched == 0:
        yield Reason(code=ReasonCode.SITES_INCOMPATIBLE, message=_why_unpatched(engagement.sites))
    elif called < patched and engagement.proof:  # without a proof nothing was run yet
        silent = [site.fqn for site in engagement.sites if site.status == "patched" and site.calls == 0]
        code = ReasonCode.PARTLY_APPLIED if called else ReasonCode.NEVER_CALLED
        message = f"the kernel ran at {called} of {patched} patched sites"
        message += f"; not at {some(silent)}" if silent else ""
        yield Reason(code=code, message=message, where=Where(site=silent[0] if silent else None))


def _why_unpatched(sites: Sequence[SiteRecord]) -> str:
    reasons = list(dict.fromkeys(site.reason for site in sites if site.reason))
    why = some(reasons) if reasons else "no reason was recorded"
    if sites and all(site.status == "declined" for site in sites):
        return f"the kernel's declared constraints exclude all {len(sites)} sites: {why}"
    return f"none of {len(sites)} sites could take the kernel: {why}"


def is_off_path(case: Case) -> Iterator[Reason]:
    """Nothing proves that the kernel ran in the arm that was timed."""
    evidence = case.evidence
    if not case.is_timed or case.has_no_headroom:
        return
    arm, engagement = find_arm(evidence, evidence.candidate), evidence.engagement
    message = None
    if arm is None or arm.status != "ok":
        message = f"candidate arm {evidence.candidate or '(none)'}: {arm.status if arm else 'not measured'}"
    elif not arm.kernel_calls:
        message = f"no call of the kernel was seen in {arm.name}"
    elif engagement is None or not engagement.proof:
        message = "no untimed step proved that the kernel runs at its sites"
    elif engagement.watermark_moved is False:
        message = "replacing the kernel's output by a constant did not change the model's output"
        message += f" ({some(engagement.unmoved)})" if engagement.unmoved else ""
    if message:
        yield Reason(code=ReasonCode.NOT_ON_PATH, message=message)

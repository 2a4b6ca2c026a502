"""The facts of a cell, one line each: from evidence and verdict to plain words."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from e2e.rules import drift
from e2e.rules.lossy import kl_added
from e2e.schema.evidence import (
    Engagement,
    Evidence,
    ExamRecord,
    LossPath,
    ModelCheck,
    ModelFacts,
    OpCheck,
    TrainingCheck,
)
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Result
from e2e.schema.verdict import MemoryVerdict, NumericsVerdict, Verdict
from e2e.schema.words import Stage, Trust
from e2e.units import Bytes, Seconds
from e2e.weighing import fed_of
from e2e.wording import (
    ABSENT,
    change,
    clean,
    count,
    duration,
    outcome_word,
    percent,
    ratio,
    sanitized,
    size,
    small,
    span,
)

_PLAIN = ("float64", "float32", "float16", "bfloat16", "bool")
"""Dtypes of what is stored as it is used; others pack it."""
_SITES_SHOWN = 4
_WRONG_SHOWN = 3
_UNSEEN_SHOWN = 6
_REACH = {
    Trust.RAW: "the kernel brings no host code",
    Trust.SANDBOXED: "the kernel's host code had read-only files and no network",
    Trust.SAME_USER: "the kernel's host code could do what this user can",
}

_UNFINISHED = {
    None: "outputs; speed",
    Stage.BUILD: "outputs; speed",
    Stage.CHECK: "speed, and calls beyond those of the check",
    Stage.SCREEN: "speed to the policy's confidence",
}
"""What the stages after the last finished one would have tested."""

_MEMORY = (
    ("peak_allocated_bytes", "peak of memory allocated by torch"),
    ("device_used_delta_bytes", "taken from the device"),
    ("peak_reserved_bytes", "reserved by torch"),
    ("host_high_water_bytes", "resident high-water mark of the process"),
    ("pinned_bytes", "page-locked by torch"),
    ("growth_bytes", "growth over the steps"),
)
"""Sources of memory figures, what decides first."""

Facts = Iterable[tuple[str, str]]


def facts_of(result: Result, cell: CellResult, *, is_deciding: bool) -> tuple[tuple[str, str], ...]:
    """Label and text of everything that fits on a line; absent parts are left out or said to be absent."""
    evidence, verdict = cell.evidence, cell.verdict
    facts = [
        *_model(evidence.model),
        *_op_checks(evidence.op_checks, verdict.numerics, result.policy),
        *_sanitized(evidence),
        *_model_check(evidence.model_check, verdict.numerics),
        *_lossy(evidence, result.policy),
        *_exam(evidence.exam),
        *_training(evidence.training),
        *_turns(evidence),
        *(_processes(evidence) if evidence.command_runs else _engagement(evidence.engagement)),
        *(_memory(verdict.memory) if evidence.stage_asked.rank >= Stage.SCREEN.rank else ()),
        *_generation(evidence),
        *_fed(result, evidence),
        *_resolution(evidence, verdict, result.policy),
    ]
    if is_deciding:
        facts += [*_selftest(result), *([] if evidence.command_runs else _set_up(result, evidence))]
        facts += [*_time(result, evidence)]
        facts += [*_claim(result), *scope(result, cell)]
    return tuple((label, clean(text)) for label, text in facts)


def package(result: Result, name: str) -> str | None:
    """Version of a package where the run happened."""
    packages = result.environment.get("packages")
    found = packages.get(name) if isinstance(packages, dict) else None
    return str(found) if found else None


def _model(facts: ModelFacts | None) -> Facts:
    """What was built, and from what its inputs come."""
    if facts is None:
        return
    dtypes = [name for name, _ in sorted(facts.dtypes.items(), key=lambda item: -item[1])]
    parts = [f"{facts.model_class}, {facts.parameters:,} parameters, {', '.join(dtypes)}"]
    if facts.quantization is not None:
        packed = [f"{number:,} in {name}" for name, number in facts.dtypes.items() if name not in _PLAIN]
        parts.append(f"quantised by {facts.quantization}, packed elements: {', '.join(packed) or 'none'}")
    if facts.attention != facts.attention_asked:
        parts.append(f"attention {facts.attention}, and {facts.attention_asked} was asked for")
    elif facts.attention:
        parts.append(f"attention {facts.attention}")
    if facts.code_sha256:
        parts.append(f"code of its own, sha256 {facts.code_sha256[:12]}")
    yield "model", "; ".join(parts)
    yield "data", facts.data


def _generation(evidence: Evidence) -> Facts:
    """What a user of the model waits for."""
    for found in evidence.generations:
        which = "strongest PyTorch" if found.arm == evidence.baseline else "candidate"
        following = f", then {duration(found.per_token_s)} a token" if found.per_token_s else ""
        speed = f"{found.tokens_per_s:,.0f} tokens/s of {count(found.rows, 'row')}"
        yield "generation", f"{which}: first token after {duration(found.first_token_s)}{following}; {speed}"


def _sanitized(evidence: Evidence) -> Facts:
    for name in dict.fromkeys((run.tool, run.kernel) for run in evidence.sanitizers):
        tool, kernel = name
        runs = [run for run in evidence.sanitizers if (run.tool, run.kernel) == name]
        yield tool, f"{sanitized(runs)}{f' of {kernel}' if kernel else ''} ({runs[0].version})"


def _op_checks(checks: list[OpCheck], numerics: NumericsVerdict, policy: Policy | None) -> Facts:
    if not checks:
        return
    text = f"{count(len(checks), 'op input')} against a higher precision: "
    if numerics.worst_op_ratio is None:
        text += "error not measured"
    else:
        limit = f" (allowed {policy.numerics.error_ratio:g}x)" if policy else ""
        text += f"error at most {ratio(numerics.worst_op_ratio)} the baseline's own{limit}"
    if numerics.mutants:
        text += f"; {numerics.mutants_caught} of {numerics.mutants} wrong kernels made on purpose caught"
    yield "op drift", text
    wrong = [check for check in checks if check.status in ("wrong", "raised")]
    for check in wrong[:_WRONG_SHOWN]:
        text = f"{check.site}, {check.label}, {check.shape} {check.dtype}: error {small(check.error_candidate)}"
        text += f", baseline {small(check.error_baseline)}, allowed {small(check.allowed)}"
        yield check.status, f"{text}{check.message and f'; {check.message}'}"
    if len(wrong) > _WRONG_SHOWN:
        yield "wrong", f"and {count(len(wrong) - _WRONG_SHOWN, 'more input')}"


def _model_check(check: ModelCheck | None, numerics: NumericsVerdict) -> Facts:
    if check is None:
        return
    error = "not measured"
    if numerics.model_ratio is not None:
        error = f"{ratio(numerics.model_ratio)} the baseline's own"
        if check.envelope is not None:
            error += f" (legal changes: {ratio(drift.widest_change(check.envelope)[0])})"
    elif check.error_candidate is not None and not check.error_baseline:  # of nothing there is no multiple
        error = f"{small(check.error_candidate)}, allowed {small(check.allowed)}"
    answer = check.answer
    parts = [f"error against {check.reference}: {error}"]
    if answer.is_distribution:
        top = "top token" if answer.per == "token" else "top class"
        parts += [
            f"KL {small(check.kl_candidate)} (baseline {small(check.kl_baseline)}) nats",
            f"same {top} {percent(check.top1_candidate, digits=5)} (baseline {percent(check.top1_baseline, digits=5)})",
        ]
    yield "model drift", "; ".join([*parts, count(check.tokens, answer.per)])
    yield from _depth(check, numerics)


def _depth(check: ModelCheck, numerics: NumericsVerdict) -> Facts:
    """Where an error comes in, and whether it grows."""
    known = drift.ratios(check.depth)
    if not known:
        return
    (_, first), (_, last) = known[0], known[-1]
    text = f"{ratio(first)} the baseline's own behind the first of {count(len(known), 'layer')}, {ratio(last)} behind"
    text += " the last"
    if numerics.depth_slope is not None:
        text += f"; slope {numerics.depth_slope:+.2f} doublings"
    if numerics.depth_jump is not None:
        text += f"; it jumps at {numerics.depth_jump}"
    yield "depth drift", text


def _lossy(evidence: Evidence, policy: Policy | None) -> Facts:
    """For whom the outcome holds, and what decided on the outputs."""
    check = evidence.model_check
    if check is None or check.precision is None:
        return
    beyond = sum(row.status == "lossy" for row in evidence.op_checks)
    text = f"declared {check.precision}: the policy's budget for the model's outputs stands in for the op rule, which"
    text += f" {beyond} of {count(len(evidence.op_checks), 'input')} would not have passed"
    allowed = policy.numerics if policy else None
    found = (
        ("KL beyond the baseline's", kl_added(check), allowed.lossy_kl_nats if allowed else None),
        ("log-likelihood lost, at most", check.nll_upper, allowed.lossy_nll_nats if allowed else None),
    )
    for what, value, most in found:
        text += f"; {what} {small(value)} nats per token" + ("" if most is None else f" (allowed {small(most)})")
    yield "precision", text


def _exam(exam: ExamRecord | None) -> Facts:
    """Whether reference and baseline answered in this run; nothing where all of it was computed here."""
    if exam is None or not (exam.kept or exam.rejected):
        return
    parts = []
    if exam.kept:
        parts.append(
            f"of {count(exam.rows, 'row')} of text kept from an earlier run; {exam.rows_again} of them computed again,"
            " the same bit for bit"
        )
    if exam.rejected:
        parts.append("what an earlier run kept did not come out the same again, so it was computed afresh")
    yield "references", f"{'; '.join(parts)} (exam seed {exam.seed})"


def _training(check: TrainingCheck | None) -> Facts:
    if check is None:
        return
    text = (
        f"{check.with_gradient_candidate:,} of {count(check.parameters, 'parameter')} receive one"
        f" (baseline {check.with_gradient_baseline:,})"
    )
    if check.missing:
        text += f"; lost: {', '.join(check.missing[:_SITES_SHOWN])}"
    if check.loss_candidate is not None:
        text += f"; loss {_number(check.loss_candidate)} (baseline {_number(check.loss_baseline)})"
    if check.worst_parameter is not None:
        worst = f"{small(check.worst_error_candidate)} (baseline {small(check.worst_error_baseline)})"
        text += f"; worst error {worst} at {check.worst_parameter}"
    yield "gradients", text
    if check.paths:
        yield "loss path", "; ".join(map(_loss_path, check.paths))


def _turns(evidence: Evidence) -> Facts:
    """How a training step's arms share what they train."""
    timed = [arm for arm in evidence.arms if arm.step_s is not None]
    if evidence.training is not None and timed:
        yield "state", f"{count(len(timed), 'arm')} train one state by turns, every segment from one snapshot"


def _loss_path(path: LossPath) -> str:
    way = f"{path.steps} steps of {path.optimizer}, {_number(path.loss_first)} to {_number(path.loss_last)}"
    return f"{way}: {small(path.apart)} apart at most (allowed {small(path.allowed)})"


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.6g}"


def _engagement(seen: Engagement | None) -> Facts:
    if seen is None:
        return
    text = f"at {seen.sites_called} of {count(seen.sites_found, 'site')}"
    text += f", {count(seen.calls, 'call')} per step"
    if seen.coverage is not None and seen.coverage < 1:
        text += f", coverage {percent(seen.coverage)}"
    yield "ran", f"{text}{seen.proof and f'; {seen.proof}'}"
    if unchecked := [site for site in seen.sites if site.unchecked]:
        kinds = ", ".join(dict.fromkeys(site.owner for site in unchecked))
        why = "; ".join(dict.fromkeys(site.unchecked for site in unchecked if site.unchecked))
        yield "checked", f"{count(len(unchecked), 'site')} ({kinds}) by the model's outputs only: {why}"
    left_out = [site for site in seen.sites if site.status != "patched"]
    for site in left_out[:_SITES_SHOWN]:
        yield (
            "left out",
            f"{site.fqn} ({site.owner}): {site.status}{f', {site.reason}' if site.reason else ''}",
        )
    if len(left_out) > _SITES_SHOWN:
        yield "left out", f"and {count(len(left_out) - _SITES_SHOWN, 'more site')}"


def _fed(result: Result, evidence: Evidence) -> Facts:
    """The data pipeline's share, and what the kernel comes to behind it."""
    fed = fed_of(evidence)
    if fed is None or result.workload is None:
        return
    workers = count(result.workload.data.workers, "worker")
    without, mine = duration(fed.baseline_s, digits=3), duration(fed.candidate_s, digits=3)
    text = f"makes a batch in {duration(fed.made_s, digits=3)} with {workers}; a step that it feeds takes {without}, of"
    text += f" which {percent(fed.waits)} is not the step; with the kernel {mine}: {ratio(fed.speedup)} end to end, no"
    text += f" interval (the same twice differs by up to {percent(fed.spread_ratio)}); prepared batches decide"
    yield "pipeline", text


def _processes(evidence: Evidence) -> Facts:
    """Of a command: the proof, and what e2e's own clock saw of its processes."""
    if evidence.engagement is not None:
        yield "ran", evidence.engagement.proof
    walls = []
    for arm in (evidence.candidate, evidence.baseline):
        own = [run.wall_s for run in evidence.command_runs if run.arm == arm and run.worker is not None]
        walls += [duration(median(own), digits=3)] if own else []
    if len(walls) == 2:
        text = f"{count(len(evidence.command_runs), 'process', 'processes')}, one after the other; by e2e's clock"
        yield "processes", f"{text} a whole one takes {walls[0]} with the kernel, {walls[1]} without"


def _memory(memory: MemoryVerdict) -> Facts:
    """The figure that decides first; `memory_figures` has the others."""
    known = memory_figures(memory)
    if not known:
        yield "memory", "not measured"
        return
    text, mine, theirs = known[0]
    said = f"{outcome_word(memory.outcome)}: " if memory.outcome else ""
    yield "memory", f"{said}{size(mine)} with the kernel, {size(theirs)} without ({change(mine - theirs)}); {text}"


def memory_figures(memory: MemoryVerdict) -> list[tuple[str, Bytes, Bytes]]:
    """What both arms have, with the kernel and without."""
    found = []
    for name, text in _MEMORY:
        mine, theirs = getattr(memory.candidate, name, None), getattr(memory.baseline, name, None)
        if mine is not None and theirs is not None:
            found.append((text, mine, theirs))
    return found


def _resolution(evidence: Evidence, verdict: Verdict, policy: Policy | None) -> Facts:
    latency = verdict.latency
    if latency.half_width is not None:
        margin = f" for a margin of {percent(policy.margin)}" if policy else ""
        text = f"half-width {percent(latency.half_width, digits=2)}{margin}:"
        where = "group of processes" if evidence.command_runs else "worker"
        where = count(latency.processes, where, "groups of processes" if evidence.command_runs else None)
        text += f" {count(latency.blocks, 'mirrored block')} in {where}"
        if latency.against:
            text += f", {percent(latency.against[0].speedup.confidence_level)} confidence"
        if latency.detectable_ratio is not None:
            text += f"; finds gains of {percent(latency.detectable_ratio, digits=2)} in nine runs of ten"
        yield "resolved", text
    audit = evidence.audit
    if audit is not None:
        found = f"mismatches: {', '.join(audit.mismatches)}" if audit.mismatches else "no mismatch"
        if audit.spread_ratio is not None:
            found += f" beyond the baseline's own spread between runs ({audit.spread_ratio:.1e})"
        what = "timed run" if evidence.command_runs else "timed step"
        replayed = f"{audit.steps_audited:,} of {count(audit.steps_timed, what)}"
        yield "verified", f"{replayed} replayed in another process: {found}"
    if evidence.trust is not None:
        yield "trust", f"{evidence.trust}: {_REACH[evidence.trust]}"
    busy = evidence.device.busy_ratio if evidence.device else None
    if busy is not None:
        yield "device", f"busy {percent(busy)} of the strongest PyTorch step"


def _time(result: Result, evidence: Evidence) -> Facts:
    if evidence.isolated is not None and evidence.isolated.plumbing_s is not None:
        cost = max(0.0, evidence.isolated.plumbing_s)
        yield "plumbing", f"{duration(cost, digits=2)} of host time per call of the kernel are e2e's own, in eager arms"
    elif evidence.isolated is not None and any(kernel.manifest.op.startswith("aten:") for kernel in result.kernels):
        yield (
            "plumbing",
            "in eager arms every operator beside the replaced one passes through Python; identical code shows the cost",
        )
    if evidence.stage_ends:
        text = ", ".join(f"{end.stage} after {span(end.seconds)}" for end in evidence.stage_ends)
        used = result.time_use
        if used is not None:
            text += (
                f"; {ratio(used.overhead_ratio)} of the {span(used.irreducible_s)} that loading, building, compiling"
            )
            text += " and the timed blocks take by themselves"
        yield "took", text


def _inputs(result: Result) -> str:
    moved = result.workload is not None and "transfer" in result.workload.include
    return "inputs move to the device within the step" if moved else "inputs on the device beforehand"


def _selftest(result: Result) -> Facts:
    """What this machine could tell apart when it was tested last."""
    note = result.selftest
    if note is None:
        return
    text = f"{count(note.workers, 'process', 'processes')} of identical code agree within {percent(note.half_width)}"
    text += f"; {count(note.runs, 'run')} of identical code, {note.confirmed or 'none'} confirmed"
    text += f"; {note.wrong_caught} of {count(note.wrong, 'wrong kernel')} caught"
    text += f"; self-test of {note.created[:10]} on {note.workload}"
    text += f", WITH {count(note.faults, 'FAULT')}: trust no verdict before it is clean" if note.faults else ""
    yield "this machine", text


def _set_up(result: Result, evidence: Evidence) -> Facts:
    """Every one-time cost by its name, then what a step costs from then on; PyTorch's own in brackets."""
    costs = result.set_up
    parts = [] if costs.build_s is None else [f"build {duration(costs.build_s, digits=3)}"]
    if evidence.builds and all(build.cached for build in evidence.builds):
        parts = ["build from the cache"]
    compilers = dict.fromkeys(build.compiler for build in evidence.builds if build.compiler)
    parts = [f"{part} by {', '.join(compilers)}" for part in parts] if compilers else parts
    parts += [] if costs.bind_s is None else [f"load {duration(costs.bind_s, digits=3)}"]
    parts += [] if costs.prepare_s is None else [f"prepare {duration(costs.prepare_s, digits=3)}"]
    if costs.warm_step_s is not None:
        first, theirs = _first_step(costs.first_step_s), _first_step(costs.baseline_first_step_s)
        parts.append(f"first step {first} (PyTorch {theirs})")
        steady = duration(costs.baseline_warm_step_s, digits=3)
        parts.append(f"warm step {duration(costs.warm_step_s, digits=3)} (PyTorch {steady})")
    if costs.break_even_steps is not None:
        parts.append(f"repaid after {count(costs.break_even_steps, 'step')}")
    if parts:
        yield "set-up", f"{', '.join(parts)}; {_inputs(result)}"


def _first_step(seconds: Seconds | None) -> str:
    return "not known: compiled before" if seconds is None else duration(seconds, digits=3)


def _claim(result: Result) -> Facts:
    record = result.claim
    if record is None or record.claimed is None:
        return
    claimed = record.claimed
    at = f" at {claimed.shapes}" if claimed.shapes else ""
    yield (
        "claim",
        f"its author says {ratio(claimed.speedup)} against {claimed.against}{at};"
        f" here {ratio(record.isolated)} alone, {ratio(record.in_context)} in the workload",
    )


def scope(result: Result, deciding: CellResult) -> Facts:
    """What the outcome holds for, and what nobody looked at."""
    if result.workload is None:
        return
    one = len(result.cells) == 1
    held = [f"{deciding.cell.title} of {result.workload.name}" if one else "the cells above"]
    device = deciding.evidence.device
    held += [device.name] if device else []
    held += [f"torch {torch}"] if (torch := package(result, "torch")) else []
    finished = deciding.evidence.stage_finished
    if result.policy is not None and finished is Stage.VERDICT and not result.is_command:
        held.append(f"modes {', '.join(result.policy.modes)}")
    if finished is not None:
        yield "holds for", "; ".join(held)
    untested = [_UNFINISHED[finished]] if finished in _UNFINISHED else []
    untested += ["other shapes, dtypes, devices and versions"]
    untested += ["training"] if deciding.cell.step != "train" else []
    untested += ["trained weights"] if deciding.evidence.random_weights else []
    yield "not tested", "; ".join(untested)
    unseen = list(dict.fromkeys([*result.unseen, *deciding.evidence.unseen]))
    if unseen:
        more = f" and {len(unseen) - _UNSEEN_SHOWN} more" if len(unseen) > _UNSEEN_SHOWN else ""
        yield "cannot see", clean("; ".join(unseen[:_UNSEEN_SHOWN])) + more

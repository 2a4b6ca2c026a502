"""Results built by hand, for reports, stores and commands. Numbers are those of DESIGN.md section 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from e2e import registry
from e2e.schema.evidence import (
    ArmRecord,
    Audit,
    Cause,
    CleanTime,
    DeviceFacts,
    Engagement,
    Envelope,
    Evidence,
    Isolated,
    KernelTime,
    LayerError,
    LegalChange,
    MemoryRecord,
    ModelCheck,
    MutantCheck,
    OpCheck,
    OtherChoices,
    Roofline,
    Segment,
    SiteRecord,
    TraceChange,
    TraceDifference,
    TraceRecord,
    Where,
)
from e2e.schema.kernel import Claim, Kernel, Manifest
from e2e.schema.policy import Policy
from e2e.schema.result import (
    CellResult,
    ClaimRecord,
    ErrorRecord,
    Feedback,
    NextAction,
    Result,
    SetUp,
)
from e2e.schema.verdict import (
    Against,
    Estimate,
    Latency,
    MemoryUse,
    MemoryVerdict,
    NumericsVerdict,
    Reason,
    Verdict,
)
from e2e.schema.words import Label, Mode, Outcome, ReasonCode, Role, Stage
from e2e.schema.workload import Cell, Cells, DataSpec, ModelSpec, Workload
from e2e.store import Run

STEPS_S = {
    "baseline:eager": 0.0826,
    "baseline:eager+F.rms_norm": 0.07128,
    "candidate:eager": 0.07127,
    "sham:eager+F.rms_norm": 0.07128,
    "headroom:eager": 0.06947,
}


def workload() -> Workload:
    return Workload(
        name="llama-infer",
        task="causal-lm",
        step="prefill",
        model=ModelSpec(id="meta-llama/Llama-3.2-1B", weights="random", dtype="bfloat16"),
        data=DataSpec(path="heldout.txt", tokenizer="bytes"),
        cells=Cells(batch=[8], sequence=[2048]),
    )


def kernel() -> Kernel:
    manifest = Manifest(
        op="rms_norm",
        entry="rms_norm_forward",
        binding="tvm-ffi",
        claim=Claim(speedup=12.9, against="eager", shapes="16384 x 2048"),
    )
    return Kernel(
        spec="kernels/rmsnorm.cu",
        path="/repo/kernels/rmsnorm.cu",
        sha256="0" * 64,
        manifest=manifest,
        format="block",
        block_line=1,
    )


def estimate(point: float, half: float, look: int | None = 5) -> Estimate:
    return Estimate(
        point_estimate=point,
        lower_bound=point - half,
        upper_bound=point + half,
        confidence_level=0.9779,
        look=look,
    )


def segments() -> list[Segment]:
    """Two ceiling workers and five verdict workers, eight mirrored blocks; times depend on place alone."""
    verdict_arms = [arm for arm in STEPS_S if arm != "headroom:eager"]
    ceiling_arms = ["baseline:eager+F.rms_norm", "headroom:eager"]
    return [*_phase("ceiling", 2, ceiling_arms), *_phase("verdict", 5, verdict_arms)]


def _phase(phase: Literal["ceiling", "verdict"], workers: int, names: list[str]) -> list[Segment]:
    return [
        Segment(
            phase=phase,
            worker=worker,
            block=block,
            position=position,
            arm=arm,
            steps=4,
            seconds=4 * STEPS_S[arm] * (1 + 0.0005 * ((worker * 7 + block * 3 + position * position) % 5 - 2)),
            seed=1000 * worker + block,
        )
        for worker in range(workers)
        for block in range(8)
        for position, arm in enumerate([*names, *reversed(names)])
    ]


def arms() -> list[ArmRecord]:
    rows: list[tuple[str, Role, Mode, str | None, float | None]] = [
        ("baseline:eager", Role.BASELINE, Mode.EAGER, None, 0.0826),
        ("baseline:eager+F.rms_norm", Role.BASELINE, Mode.EAGER, "F.rms_norm", 0.07128),
        ("baseline:compile", Role.BASELINE, Mode.COMPILE, None, 0.0746),
        ("baseline:reduce-overhead", Role.BASELINE, Mode.REDUCE_OVERHEAD, None, None),
        ("candidate:eager", Role.CANDIDATE, Mode.EAGER, None, 0.07127),
        ("candidate:compile", Role.CANDIDATE, Mode.COMPILE, None, 0.07501),
        ("sham:eager+F.rms_norm", Role.SHAM, Mode.EAGER, "F.rms_norm", 0.07128),
        ("headroom:eager", Role.HEADROOM, Mode.EAGER, None, 0.06947),
    ]
    return [
        ArmRecord(
            name=name,
            role=role,
            mode=mode,
            alternative=alternative,
            step_s=step_s,
            status="ok" if step_s else "void",
            reason=None if step_s else "ran eagerly while called compiled",
            kernel_calls=33 if role is Role.CANDIDATE else None,
            first_step_s=None if step_s is None else 31.4 if mode is Mode.COMPILE else 0.41,
        )
        for name, role, mode, alternative, step_s in rows
    ]


def op_checks() -> list[OpCheck]:
    return [
        OpCheck(
            site=f"model.layers.{layer}.input_layernorm",
            label="captured",
            shape="8 x 2048 x 2048",
            stride="4194304, 2048, 1",
            dtype="bfloat16",
            status="passed",
            error_candidate=1.7e-3,
            error_baseline=1.6e-3,
            allowed=3.2e-3,
        )
        for layer in range(16)
    ]


def engagement() -> Engagement:
    site = SiteRecord(fqn="model.norm", owner="LlamaRMSNorm", status="patched", dims={"hidden": 2048}, calls=1)
    return Engagement(
        sites_found=33,
        sites_patched=33,
        sites_called=33,
        calls=33,
        coverage=1.0,
        sites=[site],
        watermark_moved=True,
        device_kernels=["rms_norm_kernel"],
        proof="replacing its output by a constant moved the model's output",
    )


def evidence(**changes: Any) -> Evidence:
    whole = Evidence(
        stage_asked=Stage.VERDICT,
        stage_finished=Stage.VERDICT,
        device=DeviceFacts(kind="cuda", name="NVIDIA H200", count_threads=16, busy_ratio=0.97),
        engagement=engagement(),
        op_checks=op_checks(),
        mutants=[MutantCheck(name="half_epsilon", caught=True), MutantCheck(name="skips_a_row", caught=True)],
        model_check=ModelCheck(
            reference="float32",
            tokens=4096,
            error_candidate=4.1e-3,
            error_baseline=4.0e-3,
            allowed=8e-3,
            kl_candidate=2.1e-5,
            kl_baseline=2.0e-5,
            kl_tail_candidate=3.1e-4,
            kl_tail_baseline=3.0e-4,
            top1_candidate=0.9967,
            top1_baseline=0.9969,
            nll_difference=2.0e-6,
            nll_lower=-9.0e-6,
            nll_upper=1.3e-5,
            depth=[
                LayerError(layer=f"model.layers.{layer}", error_candidate=1.02 * error, error_baseline=error)
                for layer, error in enumerate((1.1e-3, 1.6e-3, 2.3e-3, 3.1e-3))
            ],
            envelope=Envelope(
                answers=512,
                error_baseline=4.0e-3,
                changes=[
                    LegalChange(name="once more", error=4.0e-3, apart=0.0, kl=2.0e-5, top1=0.9969),
                    LegalChange(name="row by row", error=4.1e-3, apart=3.0e-3, kl=2.1e-5, top1=0.9968),
                    LegalChange(name="attention eager", error=4.4e-3, apart=3.6e-3, kl=2.4e-5, top1=0.9965),
                ],
            ),
            other_choices=OtherChoices(count=9, first=311, first_margin=0.004, widest_margin=0.012),
            split_candidate=3.1e-3,
            split_baseline=3.0e-3,
            status="passed",
        ),
        arms=arms(),
        baseline="baseline:eager+F.rms_norm",
        candidate="candidate:eager",
        isolated=Isolated(
            shape="16384 x 2048 bfloat16",
            calls_per_step=33,
            eager_s=4.06e-4,
            alternative="F.rms_norm",
            alternative_s=4.05e-5,
            candidate_s=3.90e-5,
        ),
        segments=segments(),
        workers_finished=5,
        clean_times=[CleanTime(arm=arm, step_s=STEPS_S[arm]) for arm in STEPS_S if arm.startswith("baseline")],
        memory=[MemoryRecord(arm=arm, peak_allocated_bytes=5_620_000_000) for arm in STEPS_S],
        bind_s=0.021,
        audit=Audit(
            steps_compared=64,
            steps_timed=640,
            steps_committed=640,
            steps_audited=32,
            mismatches=[],
            baseline_repeats=True,
        ),
        kernel_times=[
            KernelTime(name="rms_norm_kernel<bf16>", calls=33, baseline_s=None, candidate_s=1.287e-3),
            KernelTime(name="vectorized_layer_norm_kernel<bf16>", calls=33, baseline_s=1.337e-3, candidate_s=None),
            KernelTime(name="nvjet_tst_128x256", calls=113, baseline_s=5.9e-2, candidate_s=5.9e-2),
        ],
        traces=[TraceRecord(arm="candidate:eager", path="traces/candidate.json", events=9, device_events=3, steps=2)],
        unseen=["page cache state"],
        random_weights=True,
    )
    return whole.model_copy(update=changes)


def trace_differences() -> list[TraceDifference]:
    """The candidate's trace beside PyTorch's own path, and beside eager as shipped."""
    changes: dict[str, list[tuple[Cause, float, str]]] = {
        "baseline:eager+F.rms_norm": [
            ("op", -50e-6, ""),
            ("neighbours", 31e-6, "nvjet_tst_128x256"),
            ("idle", 4e-6, ""),
        ],
        "baseline:eager": [("op", -12.1e-3, ""), ("neighbours", 0.4e-3, "nvjet_tst_128x256"), ("idle", 0.21e-3, "")],
    }
    op_s = {"baseline:eager+F.rms_norm": 1.337e-3, "baseline:eager": 13.387e-3}
    return [
        TraceDifference(
            arm=name,
            step_s=71.9e-3 - sum(seconds for _, seconds, _ in found),
            candidate_step_s=71.9e-3,
            spread_s=24e-6,
            idle_ratio=0.021,
            candidate_idle_ratio=0.022,
            op_s=op_s[name],
            candidate_op_s=1.287e-3,
            changes=[TraceChange(cause=cause, seconds=seconds, note=note) for cause, seconds, note in found],
        )
        for name, found in changes.items()
    ]


def seen_in_full() -> Evidence:
    """With everything that only the page shows: traces side by side, memory over a step, the op's limits, depth."""
    plain = evidence(trace_differences=trace_differences())
    assert plain.isolated is not None and plain.model_check is not None
    limit = Roofline(bytes=134_221_824, flops=0.0, copy_bytes_per_s=4.02e12, matmul_flops_per_s=7.1e14)
    cold = {"eager_cold_s": 4.2e-4, "alternative_cold_s": 6.1e-5, "candidate_cold_s": 5.8e-5}
    traces = [
        TraceRecord(
            arm=name,
            path=f"traces/{number}.json",
            events=9,
            device_events=3,
            steps=3,
            memory_bytes=[2**20 * (40 + 7 * (place % 5) + place + 8 * number) for place in range(80)],
        )
        for number, name in enumerate(("candidate:eager", "baseline:eager+F.rms_norm"))
    ]
    depth = [
        LayerError(layer=f"model.layers.{n}", error_candidate=1.02e-3 * 1.1**n, error_baseline=1e-3 * 1.1**n)
        for n in range(16)
    ]
    return plain.model_copy(
        update={
            "isolated": plain.isolated.model_copy(update={"roofline": limit, **cold}),
            "model_check": plain.model_check.model_copy(update={"depth": depth}),
            "traces": traces,
        }
    )


def memory_use() -> MemoryUse:
    return MemoryUse(
        processes=1,
        peak_allocated_bytes=5_620_000_000,
        peak_reserved_bytes=5_910_000_000,
        device_used_delta_bytes=3_120_000_000,
        host_high_water_bytes=2_410_000_000,
        pinned_bytes=0,
        growth_bytes=0,
    )


def no_memory() -> MemoryVerdict:
    return MemoryVerdict(
        outcome=None, baseline=None, candidate=None, reduction_ratio=None, range_ratio=None, measure="not measured"
    )


def verdict(**changes: Any) -> Verdict:
    latency = Latency(
        outcome=Outcome.REFUTED,
        against=[
            Against(
                opponent="best_pytorch",
                arm="baseline:eager+F.rms_norm",
                arm_step_s=0.07128,
                candidate_step_s=0.07127,
                speedup=estimate(1.0001, 0.0021),
                outcome=Outcome.REFUTED,
            ),
            Against(
                opponent="as_shipped",
                arm="baseline:eager",
                arm_step_s=0.0826,
                candidate_step_s=0.07127,
                speedup=estimate(1.159, 0.003),
                outcome=Outcome.CONFIRMED,
            ),
        ],
        sham=estimate(1.0, 0.001),
        ceiling=estimate(1.026, 0.002, look=2),
        half_width=0.0021,
        blocks=40,
        processes=5,
    )
    whole = Verdict(
        outcome=Outcome.REFUTED,
        label=Label.MATCHED_BY_PYTORCH,
        reasons=[
            Reason(
                code=ReasonCode.MATCHED_BY_PYTORCH,
                message="an existing PyTorch path is as fast: eager with F.rms_norm, 1.000x +- 0.002",
            ),
            Reason(
                code=ReasonCode.RANDOM_WEIGHTS,
                message="the model's weights are random, so its outputs mean little",
            ),
        ],
        latency=latency,
        memory=MemoryVerdict(
            outcome=None,
            baseline=memory_use(),
            candidate=memory_use(),
            reduction_ratio=0.0,
            range_ratio=None,
            measure="peak of memory allocated by torch",
        ),
        numerics=NumericsVerdict(
            outcome=Outcome.CONFIRMED,
            op_checks=16,
            worst_op_ratio=1.06,
            model_ratio=1.02,
            mutants_caught=2,
            mutants=2,
        ),
    )
    return whole.model_copy(update=changes)


def result(cells: list[CellResult] | None = None, **changes: Any) -> Result:
    """REFUTED, matched by PyTorch: the story of DESIGN.md section 1."""
    load = workload()
    if cells is None:
        seen = seen_in_full()
        cells = [CellResult(cell=cell(), evidence=seen, verdict=verdict())]
    first = cells[0] if cells else None
    told = first.verdict if first else None
    whole = Result(
        run_id="20261130T120000Z-llama-infer-abc123",
        created="2026-11-30T12:00:00Z",
        seconds=612.0,
        command=["e2e", "validate", "workloads/llama_infer.yaml", "--kernel", "kernels/rmsnorm.cu"],
        outcome=told.outcome if told else None,
        label=told.label if told else None,
        stage=first.evidence.stage_finished if first else None,
        reasons=told.reasons if told else [],
        latency=told.latency if told else None,
        memory=told.memory if told else None,
        numerics=told.numerics if told else None,
        engagement=first.evidence.engagement if first else None,
        set_up=SetUp(
            build_s=3.1,
            bind_s=0.021,
            first_step_s=0.41,
            warm_step_s=0.0713,
            baseline_first_step_s=0.41,
            baseline_warm_step_s=0.0713,
        ),
        claim=ClaimRecord(claimed=kernel().manifest.claim, isolated=10.4, in_context=1.0001),
        cells=cells,
        kernels=[kernel()],
        workload=load,
        policy=Policy(name="standard"),
        overrides={"model.weights": "random"},
        seed=7,
        environment={
            "platform": "Linux-6.8-x86_64",
            "python": "3.11.7",
            "packages": {"torch": "2.11.0", "transformers": "5.24.0", "apache-tvm-ffi": "0.1.15"},
            "device": "NVIDIA H200",
            "arch": "90",
        },
        unseen=["power draw"],
        feedback=Feedback(
            fault=None,
            retryable=False,
            left_to_win=1.028,
            lost_to=["F.rms_norm"],
            next_actions=[
                NextAction(kind="adopt_alternative", why="take PyTorch's own path instead: F.rms_norm is as fast"),
                NextAction(
                    kind="profile",
                    why="see where the step's time goes",
                    command="e2e trace 20261130T120000Z-llama-infer-abc123",
                    seconds=5,
                ),
            ],
        ),
        error=None,
        random_weights=True,
    )
    return whole.model_copy(update=changes)


def cell(*, batch: int = 8, sequence: int = 2048) -> Cell:
    return Cell(batch=batch, sequence=sequence, dtype="bfloat16", step="prefill")


def empty_latency() -> Latency:
    return Latency(outcome=None, against=[], sham=None, ceiling=None, half_width=None, blocks=0, processes=0)


def incorrect() -> Result:
    """A wrong kernel: no speed claim anywhere."""
    wrong = op_checks()[0].model_copy(
        update={"status": "wrong", "error_candidate": 0.31, "code": ReasonCode.OP_ERROR_EXCEEDED}
    )
    seen = evidence(
        stage_finished=Stage.CHECK,
        op_checks=[wrong],
        arms=[],
        baseline=None,
        candidate=None,
        isolated=None,
        segments=[],
        workers_finished=0,
        memory=[],
        audit=None,
        kernel_times=[],
        traces=[],
    )
    told = verdict(
        outcome=Outcome.INCORRECT,
        label=None,
        latency=empty_latency(),
        reasons=[
            Reason(
                code=ReasonCode.OP_ERROR_EXCEEDED,
                message="error 0.31 where 0.0032 is allowed",
                where=Where(file="kernels/rmsnorm.cu", line=12, site="model.layers.0.input_layernorm"),
            )
        ],
        memory=no_memory(),
        numerics=NumericsVerdict(
            outcome=Outcome.INCORRECT,
            op_checks=1,
            worst_op_ratio=194.0,
            model_ratio=None,
            mutants_caught=2,
            mutants=2,
        ),
    )
    return result([CellResult(cell=cell(), evidence=seen, verdict=told)])


def ended_early(code: int, message: str) -> Result:
    """A run that ended by code 2, 6, 70 or 130 before anything was measured."""
    return result(
        [],
        error=ErrorRecord(code=code, message=message),
        claim=None,
        feedback=None,
        set_up=SetUp(),
        overrides={},
        random_weights=False,
    )


GOLDEN = Path(__file__).parent / "golden" / "matched_by_pytorch"
REPORTS = {"md": "report.md", "text": "report.txt", "html": "report.html", "junit": "junit.xml", "github": "github.txt"}
"""Files of the golden run by format; its result.json is the sixth."""


def write_golden() -> None:
    """Stores the builder's result and what it renders to: `python -m tests.results`, then read the diff."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    run = Run(GOLDEN)
    stored = run.finish(result())
    for style, name in REPORTS.items():
        run.write_text(name, registry.load("reports", style).render(stored))


if __name__ == "__main__":
    write_golden()

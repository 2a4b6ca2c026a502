"""Evidence without a machine: builders for the records that `judge` reads, and a clock that invents noise."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from e2e.schema.evidence import (
    ArmRecord,
    Audit,
    BuildRecord,
    CleanTime,
    DeviceFacts,
    Engagement,
    Evidence,
    MemoryRecord,
    ModelCheck,
    MutantCheck,
    OpCheck,
    Segment,
    SiteRecord,
    TrainingCheck,
)
from e2e.schema.kernel import Claim, Kernel, Manifest
from e2e.schema.policy import Policy
from e2e.schema.words import Mode, Role, Stage

EAGER = "baseline:eager"
ALTERNATIVE = "baseline:eager+F.rms_norm"
CANDIDATE = "candidate:eager"
SHAM = "sham:eager"
HEADROOM = "headroom:eager"
STEP_S = 0.01
CLOCK_HZ = 1.7e9
CLOCK_JUMPS = 0.05
"""Chance before a segment that a two-level clock changes its level: with segments of a quarter second, every 5 s."""

Phase = Literal["pilot", "ceiling", "verdict"]


@dataclass(frozen=True)
class Throttle:
    """A device that slows itself down while some arms run."""

    arms: tuple[str, ...]
    slowdown: float
    """What its segments then take longer; 0.05 is one twentieth."""
    share: float
    """Of its segments."""


class SyntheticClock:
    """Times of mirrored blocks under METHOD.md B8's noise model.

    Per worker every arm has an effect of its own (`worker_sd` on a contrast of two arms); per block it has
    AR(1) noise (`block_sd` on a contrast) and sometimes a spike; over a worker's life all arms drift together.
    Beyond that, single segments may be hit by spikes, the device's clock may jump between two levels
    (`clock_swing` up and down of its mean), and the device may slow down in one arm's segments. Where either of
    the last two is asked for, segments carry their clock and whether the device throttled.
    """

    def __init__(
        self,
        seed: int | str,
        *,
        block_sd: float = 0.0,
        worker_sd: float = 0.0,
        drift: float = 0.0,
        spikes: float = 0.05,
        segment_spikes: float = 0.0,
        autocorrelation: float = 0.3,
        clock_swing: float = 0.0,
        throttle: Throttle | None = None,
    ) -> None:
        self.block_sd = block_sd
        self._random = random.Random(seed)
        self._worker_sd = worker_sd
        self._drift = drift
        self._spikes = spikes
        self._segment_spikes = segment_spikes
        self._autocorrelation = autocorrelation
        self._clock_swing = clock_swing
        self._level = 1
        self._throttle = throttle

    def worker(
        self, steps: Mapping[str, float], *, worker: int, blocks: int = 8, phase: Phase = "verdict"
    ) -> list[Segment]:
        """Every segment of one worker process; `steps` has each arm's true seconds per step."""
        effects = {arm: self._random.gauss(0, self._worker_sd / 2**0.5) for arm in steps}
        noise = {arm: self._random.gauss(0, self.block_sd / 2**0.5) for arm in steps}
        segments = []
        for block in range(blocks):
            noise = {arm: self._next(value) for arm, value in noise.items()}
            spikes = {arm: self._spike(self._spikes) for arm in steps}
            order = self._random.sample(list(steps), len(steps))
            for position, arm in enumerate([*order, *reversed(order)]):
                elapsed = (block + position / (2 * len(order))) / blocks
                log_excess = effects[arm] + noise[arm] + spikes[arm] + self._drift * elapsed
                if self._segment_spikes:
                    log_excess += self._spike(self._segment_spikes)
                seconds = 3 * steps[arm] * math.exp(log_excess)
                segments.append(self._clocked(segment(arm, seconds, worker, block, position, phase=phase)))
        return segments

    def _next(self, value: float) -> float:
        fresh = self._random.gauss(0, self.block_sd / 2**0.5)
        return self._autocorrelation * value + math.sqrt(1 - self._autocorrelation**2) * fresh

    def _spike(self, share: float) -> float:
        is_spike = self.block_sd > 0 and self._random.random() < share
        return self._random.expovariate(1 / (8 * self.block_sd)) if is_spike else 0.0

    def _clocked(self, ideal: Segment) -> Segment:
        """The segment at the clock that the device has now."""
        if not self._clock_swing and self._throttle is None:
            return ideal
        if self._random.random() < CLOCK_JUMPS:
            self._level = -self._level
        speed, throttled = 1 + self._level * self._clock_swing, False
        if self._throttle is not None and ideal.arm in self._throttle.arms:
            throttled = self._random.random() < self._throttle.share
            speed /= 1 + self._throttle.slowdown * throttled
        found = {"seconds": ideal.seconds / speed, "clock_hz": CLOCK_HZ * speed, "throttled": throttled}
        return ideal.model_copy(update=found)


def segment(
    arm: str,
    seconds: float,
    worker: int,
    block: int,
    position: int,
    *,
    steps: int = 3,
    phase: Phase = "verdict",
) -> Segment:
    return Segment(
        phase=phase,
        worker=worker,
        block=block,
        position=position,
        arm=arm,
        steps=steps,
        seconds=seconds,
        seed=0,
    )


def synthetic_segments(
    steps: Mapping[str, float],
    *,
    workers: int = 5,
    blocks: int = 8,
    seed: int = 0,
    block_sd: float = 0.002,
    worker_sd: float = 0.001,
    drift: float = 0.0,
    spikes: float = 0.05,
    phase: Phase = "verdict",
    first_worker: int = 100,
) -> list[Segment]:
    """Mirrored blocks of several workers."""
    clock = SyntheticClock(seed, block_sd=block_sd, worker_sd=worker_sd, drift=drift, spikes=spikes)
    numbers = range(first_worker, first_worker + workers)
    return [s for worker in numbers for s in clock.worker(steps, worker=worker, blocks=blocks, phase=phase)]


def steps_of(speedups: Mapping[str, float], *, eager_s: float = STEP_S) -> dict[str, float]:
    """Seconds per step of arms that are so many times faster than eager as shipped."""
    return {EAGER: eager_s, **{arm: eager_s / speedup for arm, speedup in speedups.items()}}


def timed(
    candidate: float,
    *,
    sham: float = 1.0,
    alternative: float = 1.0,
    workers: int = 5,
    blocks: int = 8,
    block_sd: float = 0.002,
    seed: int = 0,
) -> list[Segment]:
    """Verdict segments; ratios are against eager, the sham's against the best PyTorch arm."""
    speedups = {ALTERNATIVE: alternative, CANDIDATE: candidate, SHAM: alternative * sham}
    return synthetic_segments(
        steps_of(speedups),
        workers=workers,
        blocks=blocks,
        block_sd=block_sd,
        worker_sd=block_sd / 3,
        seed=seed,
    )


def with_ceiling(ceiling: float, *, workers: int = 2, phase: Phase = "ceiling") -> list[Segment]:
    """Segments of eager, alternative and headroom, whose ratio to either is `ceiling`."""
    steps = steps_of({ALTERNATIVE: 1.0, HEADROOM: ceiling})
    return synthetic_segments(steps, workers=workers, seed=7, spikes=0, phase=phase, first_worker=1)


def policy(**changes: Any) -> Policy:
    return Policy(**{"name": "standard", **changes})


def arm(name: str, **changes: Any) -> ArmRecord:
    role, _, rest = name.partition(":")
    mode, _, alternative = rest.partition("+")
    fields: dict[str, Any] = {
        "name": name,
        "role": Role(role),
        "mode": Mode(mode),
        "alternative": alternative or None,
        "status": "ok",
        "first_step_s": 0.1,
        "step_s": STEP_S,
        "kernel_calls": 13 if role == "candidate" else None,
    }
    return ArmRecord(**{**fields, **changes})


def arms(**changes: Mapping[str, Any]) -> list[ArmRecord]:
    """The usual arms; `candidate={"kernel_calls": 0}` changes one, by role (or `alternative`)."""
    names = {
        "baseline": EAGER,
        "alternative": ALTERNATIVE,
        "candidate": CANDIDATE,
        "sham": SHAM,
        "headroom": HEADROOM,
    }
    return [arm(name, **changes.get(key, {})) for key, name in names.items()]


def op_check(**changes: Any) -> OpCheck:
    fields: dict[str, Any] = {
        "site": "model.layers.3.input_layernorm",
        "label": "captured",
        "shape": "8 x 256 x 384",
        "stride": "98304, 384, 1",
        "dtype": "float32",
        "status": "passed",
        "error_candidate": 1.1e-7,
        "error_baseline": 1.0e-7,
        "allowed": 2.4e-3,
    }
    return OpCheck(**{**fields, **changes})


def model_check(**changes: Any) -> ModelCheck:
    fields: dict[str, Any] = {
        "reference": "float64",
        "tokens": 4096,
        "error_candidate": 3e-6,
        "error_baseline": 2e-6,
        "allowed": 5e-6,
        "kl_candidate": 1e-9,
        "kl_baseline": 1e-9,
        "top1_candidate": 1.0,
        "top1_baseline": 1.0,
        "status": "passed",
    }
    return ModelCheck(**{**fields, **changes})


def training(**changes: Any) -> TrainingCheck:
    fields: dict[str, Any] = {
        "parameters": 40,
        "with_gradient_baseline": 40,
        "with_gradient_candidate": 40,
        "missing": [],
        "status": "passed",
    }
    return TrainingCheck(**{**fields, **changes})


def site(fqn: str, **changes: Any) -> SiteRecord:
    return SiteRecord(**{"fqn": fqn, "owner": "LlamaRMSNorm", "status": "patched", "calls": 1, **changes})


def engagement(*sites: SiteRecord, **changes: Any) -> Engagement:
    sites = sites or tuple(site(f"model.layers.{layer}.input_layernorm") for layer in range(13))
    patched = [s for s in sites if s.status == "patched"]
    called = [s for s in patched if s.calls]
    fields: dict[str, Any] = {
        "sites_found": len(sites),
        "sites_patched": len(patched),
        "sites_called": len(called),
        "calls": sum(s.calls for s in sites),
        "coverage": len(called) / len(sites),
        "sites": list(sites),
        "watermark_moved": True,
        "proof": "counted in one untimed step",
    }
    return Engagement(**{**fields, **changes})


def audit(**changes: Any) -> Audit:
    fields: dict[str, Any] = {
        "steps_compared": 64,
        "steps_timed": 2400,
        "steps_committed": 2400,
        "steps_audited": 120,
        "mismatches": [],
        "baseline_repeats": True,
    }
    return Audit(**{**fields, **changes})


def clean_times(segments: Sequence[Segment], *, ratio: float = 1.0) -> list[CleanTime]:
    """PyTorch's arms without the candidate: as long, by median, as in the segments, or `ratio` times as long."""
    found = []
    for name in (EAGER, ALTERNATIVE):
        steps = [s.seconds / s.steps for s in segments if s.phase == "verdict" and s.arm == name]
        found += [CleanTime(arm=name, step_s=ratio * statistics.median(steps))] if steps else []
    return found


def evidence(segments: Sequence[Segment] = (), **changes: Any) -> Evidence:
    """A healthy run that got to a verdict; change what the test is about."""
    finished = {s.worker for s in segments if s.phase == "verdict"}
    fields: dict[str, Any] = {
        "stage_asked": Stage.VERDICT,
        "stage_finished": Stage.VERDICT,
        "device": DeviceFacts(kind="cpu", name="a CPU", count_threads=2),
        "builds": [BuildRecord(kernel="0" * 64, seconds=2.0, cached=False)],
        "bind_s": 0.5,
        "engagement": engagement(),
        "op_checks": [op_check(), op_check(label="large values", error_baseline=None)],
        "mutants": [MutantCheck(name="zeros", caught=True), MutantCheck(name="skips_weight", caught=True)],
        "model_check": model_check(),
        "arms": arms(),
        "baseline": ALTERNATIVE,
        "candidate": CANDIDATE,
        "segments": list(segments),
        "workers_finished": len(finished),
        "clean_times": clean_times(segments),
        "memory": [MemoryRecord(arm=name, host_high_water_bytes=2**30) for name in (ALTERNATIVE, CANDIDATE)],
        "audit": audit(),
    }
    return Evidence(**{**fields, **changes})


def stopped_at(stage: Stage, **changes: Any) -> Evidence:
    """A healthy run for which an earlier stage was asked, and passed."""
    return evidence(**{"stage_asked": stage, "stage_finished": stage, "audit": None, **changes})


def kernel(claim: Claim | None = None) -> Kernel:
    manifest = Manifest(op="rms_norm", entry="rms_norm_forward", binding="tvm-ffi", claim=claim)
    return Kernel(spec="kernels/rmsnorm.cpp", path=None, sha256="0" * 64, manifest=manifest, format="block")

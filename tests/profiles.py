"""Invented profiles, as a machine might have made them."""

from __future__ import annotations

from typing import Any

from e2e.schema.evidence import DeviceFacts, ModelFacts, TraceRecord
from e2e.schema.profile import (
    Alternative,
    Capture,
    ModuleRow,
    OpProfile,
    ProfileReport,
    StepMemory,
    StepProfile,
    TimeRow,
)
from e2e.schema.result import ErrorRecord
from e2e.schema.verdict import Estimate
from e2e.schema.workload import Workload, cells_of
from tests.fakes import ALTERNATIVE, EAGER, arm, policy

WORKLOAD = Workload.model_validate(
    {
        "name": "llama-infer",
        "task": "causal-lm",
        "step": "prefill",
        "model": {"id": "some/model", "dtype": "bfloat16"},
        "data": {"path": "text.txt"},
        "cells": {"batch": [8], "sequence": [2048]},
    }
)


INTERRUPT = ErrorRecord(code=130, message="interrupted")


def estimate(point: float, half: float = 0.002) -> Estimate:
    return Estimate(
        point_estimate=point, lower_bound=point - half, upper_bound=point + half, confidence_level=0.95, look=1
    )


def norm(**changes: Any) -> OpProfile:
    fields: dict[str, Any] = {
        "op": "rms_norm",
        "status": "measured",
        "sites": 33,
        "calls": 33,
        "stopwatch_ratio": 0.14,
        "share": estimate(0.137),
        "strongest": ALTERNATIVE,
        "strongest_s": 0.0713,
        "ceiling": estimate(1.026),
        "twice_as_fast_ratio": 1.013,
        "worth": "yes",
        "alternatives": [Alternative(name="F.rms_norm", arm=ALTERNATIVE, speedup=estimate(1.159))],
        "capture": Capture(path="captures/rms_norm.safetensors", calls=3, bytes=1000),
    }
    return OpProfile(**{**fields, **changes})


def step(**changes: Any) -> StepProfile:
    fields: dict[str, Any] = {
        "arm": EAGER,
        "step_s": 0.0826,
        "trace": TraceRecord(arm=EAGER, path="traces/a.gz", events=10, device_events=5, steps=3),
        "busy_s": 0.078,
        "idle_ratio": 0.056,
        "operators": [TimeRow(name="aten::mm", calls=113, seconds=0.05, share_ratio=0.6)],
        "kernels": [TimeRow(name="nvjet_tst", calls=113, seconds=0.05, share_ratio=0.6)],
        "modules": [
            ModuleRow(
                name="model.layers.*.mlp", owner="LlamaMLP", calls=16, own_s=0.001, total_s=0.05, share_ratio=0.01
            )
        ],
    }
    return StepProfile(**{**fields, **changes})


def report(**changes: Any) -> ProfileReport:
    fields: dict[str, Any] = {
        "run_id": "20260101T000000Z-llama-infer-abc",
        "created": "2026-01-01T00:00:00+00:00",
        "seconds": 118.0,
        "command": ["e2e", "profile", "llama_infer"],
        "error": None,
        "workload": WORKLOAD,
        "cell": cells_of(WORKLOAD)[0],
        "cells": 1,
        "overrides": {},
        "policy": policy(),
        "random_weights": False,
        "seed": 3,
        "method": "2",
        "device": DeviceFacts(kind="cuda", name="NVIDIA H200", count_threads=16),
        "model": ModelFacts(model_class="LlamaForCausalLM", parameters=10, dtypes={}, data="text", is_synthetic=True),
        "modes": [
            arm(EAGER, step_s=0.0826),
            arm("baseline:compile", status="failed", reason="no compiler", step_s=None),
        ],
        "strongest": EAGER,
        "steps": [step()],
        "memory": StepMemory(
            parameters_bytes=2**31, buffers_bytes=0, held_bytes=2**31, peak_bytes=2**32, host_high_water_bytes=2**30
        ),
        "ops": [norm()],
        "absent": ["gelu"],
        "next": ["e2e new kernel rms_norm --lang cu"],
        "environment": {},
        "unseen": [],
    }
    return ProfileReport(**{**fields, **changes})

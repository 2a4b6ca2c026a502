from __future__ import annotations

from e2e.doctor import Check, Status, conclude, render

EVERYTHING = (
    "python", "torch", "transformers", "CUDA device", "host compiler", "nvcc", "NVRTC", "apache-tvm-ffi", "triton",
)  # fmt: skip


def checks(**status: Status) -> list[Check]:
    by_name = {name.replace("_", " "): value for name, value in status.items()}
    return [Check(name, by_name.get(name, "ok"), "1.0", "do this") for name in EVERYTHING]


def test_a_whole_machine_validates_every_kind() -> None:
    diagnosis = conclude(checks())
    assert diagnosis.code == 0
    assert len(diagnosis.possible) == 5
    assert diagnosis.impossible == ()


def test_a_cpu_machine_validates_cpp_and_says_what_a_cu_needs() -> None:
    diagnosis = conclude(checks(CUDA_device="missing"))
    assert diagnosis.code == 0
    assert ".cpp kernels on the CPU" in diagnosis.possible
    assert ".cu kernels: needs CUDA device" in diagnosis.impossible


def test_bare_kernels_need_one_of_two_compilers() -> None:
    kind = "bare .cu kernels (raw)"
    assert kind in conclude(checks(nvcc="missing")).possible
    assert kind in conclude(checks(NVRTC="missing")).possible
    assert f"{kind}: needs nvcc" in conclude(checks(nvcc="missing", NVRTC="missing")).impossible


def test_without_torch_nothing_can_be_validated() -> None:
    diagnosis = conclude(checks(torch="missing"))
    assert diagnosis.code == 6
    assert diagnosis.possible == ()


def test_what_cannot_be_seen_does_not_count_as_there() -> None:
    assert ".cu kernels: needs CUDA device" in conclude(checks(CUDA_device="cannot see")).impossible


def test_remedies_are_shown_only_where_needed() -> None:
    lines = render(conclude(checks(nvcc="missing"))).splitlines()
    assert [line.split()[1] for line in lines if "-> do this" in line] == ["nvcc"]
    assert lines[-1].startswith("cannot validate here")

"""Whole runs of `e2e validate` in processes of their own, with kernels that are wrong, hostile or merely slow.

Marked `slow`: each imports torch in two zygotes. Whatever the kernel does, the run ends with its own outcome, keeps
its result, shows no traceback and leaves no process and no scratch file behind.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import unfinished
from e2e.integrity.isolation import namespace_prefix
from e2e.integrity.sandbox import sandbox
from e2e.schema.check import CheckReport
from e2e.schema.evidence import ExamRecord
from e2e.schema.words import Outcome, Role, Stage, Trust
from tests import tiny
from tests.kills import differences, quick_policy
from tests.specimens import write_workloads
from tests.started import REPOSITORY, Ended, Started

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes through /proc"),
]

BAD = REPOSITORY / "tests" / "kernels" / "bad"
GOOD = REPOSITORY / "tests" / "kernels" / "plain_norm.py"


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path, e2e_cache: Path) -> Iterator[Start]:
    """Starts commands; whatever they leave is killed at the end, so that one failure does not spoil the next test."""
    started: list[Started] = []

    def begin(*arguments: str, **environment: str) -> Started:
        started.append(Started(tmp_path, *arguments, **environment))
        return started[-1]

    yield begin
    for item in started:
        item.clean_up()


@pytest.fixture
def validate(start: Start, tiny_workload: Path, tiny_policy: Path) -> Callable[..., Ended]:
    """Runs `e2e validate` on the tiny workload until `check`, and sees that it left nothing."""

    def run(
        kernel: Path | str,
        *arguments: str,
        policy: Path = tiny_policy,
        until: str = "check",
        workload: Path = tiny_workload,
        **environment: str,
    ) -> Ended:
        command = ["validate", str(workload), "--kernel", str(kernel), "--policy", str(policy)]
        started = start(*command, "--until", until, *arguments, **environment)
        ended = started.end()
        assert "Traceback" not in ended.err
        assert "Traceback" not in ended.out
        assert started.left_behind() == {}
        assert list(started.scratch.iterdir()) == []
        return ended

    return run


def short_policy(folder: Path, **changes: float) -> Path:
    return tiny.write_policy(folder / "short.yaml", **{"call_s": 5, **changes})  # type: ignore[arg-type]


# ---- Right


def test_a_right_kernel_passes_the_check(validate: Callable[..., Ended]) -> None:
    ended = validate(GOOD)
    assert (ended.code, ended.result.outcome) == (0, None)
    assert ended.result.stage is Stage.CHECK
    assert ended.reasons == []
    engagement = ended.result.engagement
    assert engagement is not None
    assert (engagement.sites_found, engagement.sites_called, engagement.calls) == (tiny.SITES,) * 3
    assert engagement.watermark_moved is True
    checks = ended.result.cells[0].evidence.op_checks
    assert {check.status for check in checks} == {"passed"}
    assert ended.result.cells[0].evidence.mutants
    assert all(mutant.caught for mutant in ended.result.cells[0].evidence.mutants)


def test_a_right_kernel_passes_in_training_with_a_backward_of_its_own(validate: Callable[..., Ended]) -> None:
    ended = validate(GOOD, "--set", "step=train")
    assert (ended.code, ended.result.outcome) == (0, None)
    training = ended.result.cells[0].evidence.training
    assert training is not None
    assert training.with_gradient_baseline == training.with_gradient_candidate == training.parameters
    assert training.loss_candidate == pytest.approx(training.loss_baseline)


def test_a_task_from_outside_is_checked_like_one_of_ours(validate: Callable[..., Ended]) -> None:
    ended = validate(REPOSITORY / "kernels" / "layer_norm.cpp", workload=REPOSITORY / "examples" / "forecaster.yaml")
    assert (ended.code, ended.reasons) == (0, ["random_weights"])
    evidence = ended.result.cells[0].evidence
    assert evidence.engagement is not None and evidence.engagement.calls == 8
    assert evidence.model_check is not None and evidence.model_check.answer.what == "forecasts"
    assert evidence.model is not None and evidence.model.is_synthetic
    assert ended.result.environment["task_sha256"] is not None
    assert "SYNTHETIC DATA" in ended.out


def test_a_program_of_ones_own_is_taken_to_a_verdict(validate: Callable[..., Ended]) -> None:
    example = REPOSITORY / "examples" / "command"
    ended = validate(example / "rms_norm.py", workload=example / "tiny_llama.yaml", until="verdict")
    assert ended.result.stage is Stage.VERDICT
    assert ended.result.outcome in (Outcome.CONFIRMED, Outcome.REFUTED, Outcome.INCONCLUSIVE), ended.reasons
    evidence = ended.result.cells[0].evidence
    assert evidence.engagement is not None and evidence.engagement.watermark_moved is True
    assert evidence.model_check is not None and evidence.model_check.status == "passed"
    assert evidence.workers_finished >= 5
    assert "EXTERNAL, TRUST LIMITED" in ended.out


def test_a_padded_batch_is_timed_and_audited_to_a_verdict(validate: Callable[..., Ended], tmp_path: Path) -> None:
    kernel = tmp_path / "layer_norm.py"
    kernel.write_text(
        "import torch\n\n\ndef layer_norm(x, weight, bias, eps):\n"
        "    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)\n"
    )
    fed = ("--set", "include=[data]", "--set", "data.workers=1")
    ended = validate(kernel, *fed, workload=write_workloads(tmp_path)["feature-extraction"], until="verdict")
    assert ended.result.stage is Stage.VERDICT
    assert [None, "baseline", "candidate"] == [
        item.arm and item.arm.partition(":")[0] for item in ended.result.cells[0].evidence.fed
    ]
    assert "end to end" in " ".join(ended.out.split())
    assert ended.result.outcome in (Outcome.REFUTED, Outcome.INCONCLUSIVE), ended.reasons
    evidence = ended.result.cells[0].evidence
    assert evidence.audit is not None and not evidence.faults
    assert evidence.model_check is not None
    assert evidence.model_check.status == "passed"
    assert evidence.model_check.kl_candidate is None
    assert 0 < evidence.model_check.tokens < 8 * 32, "padding is not counted"


@pytest.mark.parametrize("step", ["prefill", "train"])
def test_a_right_kernel_for_an_operator_passes_the_check(validate: Callable[..., Ended], step: str) -> None:
    ended = validate(REPOSITORY / "tests" / "kernels" / "plain_silu.py", "--set", f"step={step}")
    assert (ended.code, ended.reasons) == (0, [])
    engagement = ended.result.engagement
    assert engagement is not None
    assert {site.fqn for site in engagement.sites} == {f"model.layers.{n}.mlp.act_fn" for n in range(tiny.LAYERS)}
    assert engagement.calls == engagement.sites_called == tiny.LAYERS
    assert all(mutant.caught for mutant in ended.result.cells[0].evidence.mutants)


def test_an_operator_that_no_kernel_can_stand_for_is_the_callers_mistake(
    validate: Callable[..., Ended], tmp_path: Path
) -> None:
    file = tmp_path / "in_place.py"
    file.write_text("def silu(x):\n    return x\n")
    ended = validate(file, "--op", "aten:silu_.default")
    assert ended.code == 2
    assert "aten:silu_.default cannot be replaced: it writes to an argument" in " ".join(ended.out.split())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_kernel_passes_in_half_precision(validate: Callable[..., Ended], dtype: str) -> None:
    ended = validate(REPOSITORY / "kernels" / "rmsnorm.cpp", "--set", f"model.dtype={dtype}")
    assert (ended.code, ended.reasons) == (0, [])


def test_a_right_kernel_passes_in_decoding(validate: Callable[..., Ended]) -> None:
    ended = validate(GOOD, "--set", "step=decode")
    assert (ended.code, ended.reasons) == (0, [])


# ---- Several kernels at once


def test_kernels_that_are_right_alone_and_wrong_together_are_told_apart(validate: Callable[..., Ended]) -> None:
    folder = REPOSITORY / "tests" / "kernels"
    norm, product = str(folder / "pair_norm.py"), str(folder / "pair_silu_mul.py")
    ended = validate(norm, "--kernel", product)
    assert (ended.code, ended.result.outcome) == (12, Outcome.INCORRECT)
    assert ended.reasons == ["model_error_exceeded"]
    checks = ended.result.cells[0].evidence.op_checks
    assert {(check.kernel, check.status) for check in checks} == {(norm, "passed"), (product, "passed")}
    assert [(row.kernels, row.code) for row in ended.result.ablation] == [
        ([norm], None),
        ([product], None),
        ([norm, product], "model_error_exceeded"),
    ]
    assert f"each kernel passes alone, and what fails is {norm} with {product}" in ended.result.reasons[0].message
    assert "Each kernel, and all together" in ended.out


def test_several_kernels_together_get_one_verdict_and_a_row_each(
    validate: Callable[..., Ended], verdict_policy: Path
) -> None:
    kernels = [str(GOOD), str(REPOSITORY / "tests" / "kernels" / "pair_silu_mul.py")]
    result = validate(kernels[0], "--kernel", kernels[1], policy=verdict_policy, until="verdict").result
    evidence = result.cells[0].evidence
    assert result.outcome in (Outcome.CONFIRMED, Outcome.REFUTED, Outcome.INCONCLUSIVE)
    assert [kernel.spec for kernel in result.kernels] == evidence.kernels == kernels
    assert result.engagement is not None
    sites = {kernel: [site for site in result.engagement.sites if site.kernel == kernel] for kernel in kernels}
    assert [len(found) for found in sites.values()] == [tiny.SITES, tiny.LAYERS]
    assert all(site.calls == 1 for found in sites.values() for site in found)
    assert [item.kernel for item in (evidence.isolated, *evidence.isolated_others) if item is not None] == kernels
    if result.label != "no_headroom" and not evidence.budget_exhausted:
        alone = [arm for arm in evidence.arms if arm.role is Role.PART]
        assert [(arm.status, arm.kernel_calls) for arm in alone] == [("ok", tiny.SITES), ("ok", tiny.LAYERS)]
        assert [row.kernels for row in result.ablation] == [kernels[:1], kernels[1:], kernels]
        assert all(row.against for row in result.ablation)
        assert result.interaction is not None
        assert evidence.audit is not None and evidence.audit.mismatches == []


# ---- A second kernel


def exam_of(ended: Ended) -> ExamRecord:
    exam = ended.result.cells[0].evidence.exam
    assert exam is not None
    return exam


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """The same kernel as another author would have it: other bytes, so nothing of its own is known."""
    file = tmp_path / GOOD.name
    file.write_text(f"{GOOD.read_text()}# another author\n")
    return file


def test_a_second_kernel_takes_the_exam_and_the_answers_of_the_first(
    tmp_path: Path, tiny_workload: Path, tiny_policy: Path, second: Path
) -> None:
    found = []
    for place, kernel in enumerate((GOOD, second)):
        folder = tmp_path / str(place)
        folder.mkdir()
        command = ["validate", str(tiny_workload), "--kernel", str(kernel), "--policy", str(tiny_policy)]
        cache = str(tmp_path / "cache")
        ended = Started(folder, *command, "--until", "check", E2E_CACHE_DIR=cache).end()
        assert (ended.code, ended.reasons) == (0, [])
        found.append(ended)
    one, two = map(exam_of, found)
    assert (one.seed, one.run, two.run) == (two.seed, 1, 2)
    assert (one.kept, two.kept) == ([], ["logits", "envelope", "condition.0"])
    assert two.rows_again == len(two.kept), "of each a row was computed again"
    assert "kept from an earlier run" in found[1].out
    assert found[0].result.seed != found[1].result.seed
    checks = [item.result.cells[0].evidence.model_check for item in found]
    assert checks[0] == checks[1], "the same kernel, the same answers"


def test_a_policy_without_reuse_draws_inputs_of_its_own(
    validate: Callable[..., Ended], tmp_path: Path, second: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(tiny.write_policy(policy).read_text().replace("numerics: {", "numerics: {reuse: false, "))
    ended = validate(second, policy=policy)
    assert (exam_of(ended).seed, exam_of(ended).kept) == (ended.result.seed, [])


# ---- Kernels that fail: FAILED, 13


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("../does_not_compile.cpp", "build_failed"),
        ("missing_entry.cpp", "bind_failed"),
        ("missing_function.py", "bind_failed"),
        ("raises.cpp", "candidate_raised"),
        ("aborts.cpp", "candidate_crashed"),
        ("null_pointer.cpp", "candidate_crashed"),
        ("exits.cpp", "candidate_exited"),
        ("leaves_at_once.py", "candidate_exited"),
        ("leaves_process.py", "candidate_exited"),
        ("leaves_on_import.py", "candidate_exited"),
        ("raises_odd.py", "candidate_exited"),
        ("allocates.cpp", "out_of_memory"),
        ("hoards.py", "out_of_memory"),
    ],
)
def test_a_kernel_that_fails_is_failed_with_its_reason(
    validate: Callable[..., Ended], kernel: str, reason: str
) -> None:
    ended = validate(BAD / kernel)
    assert (ended.code, ended.result.outcome) == (13, Outcome.FAILED)
    assert ended.reasons[0] == reason
    assert "FAILED" in ended.out
    fault = ended.result.feedback
    assert fault is not None
    assert fault.fault == "kernel"


@pytest.mark.parametrize("kernel", ["loops.cpp", "hangs_on_import.py"])
def test_a_kernel_that_never_comes_back_is_ended_by_its_limit(
    validate: Callable[..., Ended], tmp_path: Path, kernel: str
) -> None:
    ended = validate(BAD / kernel, policy=short_policy(tmp_path))
    assert (ended.code, ended.result.outcome) == (13, Outcome.FAILED)
    assert ended.reasons[0] == "timed_out"
    assert ended.seconds < 40


def test_python_that_does_not_parse_is_a_failed_build_with_its_line(
    validate: Callable[..., Ended], tmp_path: Path
) -> None:
    kernel = tmp_path / "norm.py"
    kernel.write_text(
        "# /// e2e\n# op: rms_norm\n# entry: norm\n# ///\n\n\ndef norm(x, weight, eps):\n    return x *\n"
    )
    ended = validate(kernel)
    assert (ended.code, ended.reasons[0]) == (13, "build_failed")
    assert ended.result.reasons[0].where.line == 8


def test_what_was_known_before_a_crash_is_kept(validate: Callable[..., Ended]) -> None:
    result = validate(BAD / "aborts.cpp").result
    evidence = result.cells[0].evidence
    assert evidence.builds[0].seconds > 0
    assert evidence.engagement is not None
    assert evidence.engagement.sites_found == tiny.SITES
    assert evidence.device is not None


@pytest.mark.parametrize("kernel", ["forward_only.cpp"])
def test_a_kernel_without_a_backward_is_failed_in_training(validate: Callable[..., Ended], kernel: str) -> None:
    ended = validate(BAD / kernel, "--set", "step=train")
    assert (ended.code, ended.result.outcome) == (13, Outcome.FAILED)
    assert ended.reasons[0] == "no_backward"


# ---- Kernels that are wrong: INCORRECT, 12


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("zeros.cpp", "op_error_exceeded"),
        ("undeclared_int8.py", "precision_downgraded"),
        ("prepared_output.py", "op_error_exceeded"),
        ("lossy_zeros.py", "op_error_exceeded"),
        ("lossy_drops_channels.py", "lossy_budget_exceeded"),
        ("returns_input.py", "op_error_exceeded"),
        ("wrong_epsilon.cpp", "op_error_exceeded"),
        (
            "drops_last_row.cpp",
            "nonfinite_output",
        ),  # fresh memory is poisoned: what is not written shows as NaN
        ("nan.py", "nonfinite_output"),
        ("float64.py", "wrong_output_layout"),
        ("writes_input.py", "inputs_changed"),
        ("static_buffer.py", "wrong_output_layout"),
    ],
)
def test_a_kernel_that_is_wrong_is_incorrect_with_its_reason(
    validate: Callable[..., Ended], kernel: str, reason: str
) -> None:
    ended = validate(BAD / kernel)
    assert (ended.code, ended.result.outcome) == (12, Outcome.INCORRECT)
    assert ended.reasons[0] == reason
    assert ended.result.latency is None or ended.result.latency.against == []


WRONG_ROW = """\
# /// e2e
# op: rms_norm
# entry: norm
# ///
from torch.nn.functional import rms_norm


def norm(x, weight, eps):
    y = rms_norm(x, (x.shape[-1],), weight, eps)
    y.view(-1, y.shape[-1])[-1:] *= 1.001
    return y
"""


def test_inputs_that_failed_are_kept_and_one_command_shows_the_failure_again(
    validate: Callable[..., Ended], tmp_path: Path
) -> None:
    """A wrong row, whose place is named."""
    (tmp_path / "wrong_row.py").write_text(WRONG_ROW)
    ended = validate(tmp_path / "wrong_row.py")
    assert (ended.code, ended.reasons[0]) == (12, "op_error_exceeded")
    assert ended.result.reasons[0].where.position is not None
    captured = [check for check in ended.result.cells[0].evidence.op_checks if check.label == "captured"]
    assert all("the last 1 of 32 rows" in str(check.position) for check in captured)
    assert ended.result.feedback is not None
    (again,) = [action for action in ended.result.feedback.next_actions if action.kind == "reproduce"]
    command = shlex.split(str(again.command))
    assert command[:2] == ["e2e", "check"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--json"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    report = CheckReport.model_validate_json(done.stdout)
    assert (done.returncode, report.reasons[0].code) == (12, "op_error_exceeded")
    assert "captured" in {check.label for check in report.dtypes[0].inputs if check.status == "wrong"}


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("detaches.py", "gradients_missing"),
        ("half_gradient.py", "gradient_error_exceeded"),
        ("nan_gradient.py", "nonfinite_output"),
    ],
)
def test_wrong_gradients_are_incorrect(validate: Callable[..., Ended], kernel: str, reason: str) -> None:
    ended = validate(BAD / kernel, "--set", "step=train")
    assert (ended.code, ended.result.outcome) == (12, Outcome.INCORRECT)
    assert ended.reasons[0] == reason


# ---- Kernels that do more than compute


@pytest.mark.parametrize("kernel", ["talks_out_of_turn.py", "speaks_for_the_worker.py"])
def test_a_kernel_that_speaks_for_its_worker_never_passes(validate: Callable[..., Ended], kernel: str) -> None:
    ended = validate(BAD / kernel)
    assert ended.code in (12, 13)
    assert ended.result.outcome in (Outcome.INCORRECT, Outcome.FAILED)


def test_a_kernel_that_marks_its_segments_end_itself_is_caught(validate: Callable[..., Ended]) -> None:
    """The mark is well formed and carries the request's number; there are too many."""
    ended = validate(BAD / "marks_early.py", until="screen")
    assert (ended.code, ended.result.outcome) == (12, Outcome.INCORRECT)
    assert ended.reasons[0] == "tampered"
    assert "marks instead of 2" in ended.result.reasons[0].message


def test_a_kernel_reaches_no_secret_no_file_no_network_and_no_process_of_others(
    validate: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    if sandbox([tmp_path / "here"], cuda=False) is None:
        pytest.skip("no sandbox works here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        secrets = {"HF_TOKEN": "s3cret", "AWS_SECRET_ACCESS_KEY": "s3cret"}
        ended = validate(BAD / "looks_around.py", E2E_TEST_PORT=str(server.getsockname()[1]), **secrets)
    assert ended.code == 0, ended.out
    assert ended.result.cells[0].evidence.trust is Trust.SANDBOXED
    assert "trust        sandboxed: the kernel's host code had read-only files and no network" in ended.out


@pytest.mark.skipif(not namespace_prefix(cuda=False), reason="PID namespaces are refused here")
@pytest.mark.parametrize("kernel", ["leaves_a_daemon.py", "kills_its_parent.py"])
def test_in_a_namespace_a_kernel_neither_escapes_nor_ends_its_zygote(
    validate: Callable[..., Ended], kernel: str
) -> None:
    """That nothing is left is seen by `validate` itself."""
    assert validate(BAD / kernel).code == 0


# ---- Not applicable, 14


@pytest.mark.parametrize(
    ("kernel", "reason"), [("absent_op.py", "no_sites"), ("declines_everything.py", "sites_incompatible")]
)
def test_an_op_without_a_site_for_the_kernel_is_not_applicable(
    validate: Callable[..., Ended], kernel: str, reason: str
) -> None:
    ended = validate(BAD / kernel)
    assert (ended.code, ended.result.outcome) == (14, Outcome.NOT_APPLICABLE)
    assert ended.reasons[0] == reason


# ---- The caller's mistakes, 2, and the environment's, 6


def test_a_dtype_that_the_kernel_does_not_declare_is_the_callers_mistake(
    validate: Callable[..., Ended],
) -> None:
    ended = validate(BAD / "half_only.py")
    assert (ended.code, ended.folder) == (2, None)
    assert "declares dtypes float16" in ended.err
    assert "--set model.dtype=float16" in ended.err


def test_a_model_folder_that_is_missing_is_the_callers_mistake(validate: Callable[..., Ended]) -> None:
    ended = validate(GOOD, "--set", "model.id=./no_such_folder")
    assert (ended.code, ended.folder) == (2, None)
    assert "no_such_folder" in ended.err


def test_a_hub_model_is_refused_in_seconds_when_offline(validate: Callable[..., Ended]) -> None:
    ended = validate(GOOD, "--set", "model.id=no-such-owner/no-such-model")
    assert (ended.code, ended.folder) == (6, None)
    assert "offline" in ended.err
    assert "model.weights=random" in ended.err
    assert ended.seconds < 10


def test_a_hub_that_does_not_answer_is_given_up_in_seconds(validate: Callable[..., Ended]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, and not listening: connections are refused
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ended = validate(
            GOOD, "--set", "model.id=no-such-owner/no-such-model", HF_HUB_OFFLINE="0", HF_ENDPOINT=endpoint
        )
    assert (ended.code, ended.folder) == (6, None)
    assert "cannot be reached" in ended.err
    assert ended.seconds < 10


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a CUDA device")
@pytest.mark.parametrize("kernel", ["rmsnorm.cu", "rmsnorm_raw.cu", "rmsnorm_triton.py"])
def test_a_cuda_kernel_on_a_machine_without_cuda_is_sent_elsewhere(validate: Callable[..., Ended], kernel: str) -> None:
    ended = validate(REPOSITORY / "kernels" / kernel)
    assert (ended.code, ended.folder) == (6, None)
    assert "kernels/rmsnorm.cpp" in ended.err
    assert "e2e doctor" in ended.err


def test_weights_that_are_damaged_are_said_to_be_so(
    validate: Callable[..., Ended], tiny_workload: Path, tmp_path: Path
) -> None:
    tiny.write_workload(tmp_path)
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    ended = validate(GOOD, "--set", f"model.id={tmp_path / 'model'}")
    assert ended.code == 6
    assert "weights" in ended.out + ended.err


def test_weights_that_are_not_in_the_checkpoint_are_drawn_alike_in_every_process_and_named(
    validate: Callable[..., Ended],
) -> None:
    ended = validate(GOOD, "--set", "model.config={num_hidden_layers: 3}")
    assert ended.code == 0
    assert "model.layers.2." in ended.out
    assert "drawn" in ended.out


def test_weights_of_another_size_are_the_callers_mistake(validate: Callable[..., Ended]) -> None:
    assert validate(GOOD, "--set", "model.config={hidden_size: 32}").code == 2


def test_a_model_that_is_not_finite_can_judge_nothing(validate: Callable[..., Ended], tmp_path: Path) -> None:
    import torch

    model = tiny.llama()
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    model.save_pretrained(tmp_path / "model")
    ended = validate(GOOD, "--set", f"model.id={tmp_path / 'model'}")
    assert ended.code == 2
    assert "not finite" in ended.out + ended.err


# ---- Interrupted


def waiting(start: Start, workload: Path, policy: Path, **environment: str) -> Started:
    """A run in the middle of its check, with both zygotes up and the kernel at work."""
    command = ["validate", str(workload), "--kernel", str(BAD / "waits.py"), "--policy", str(policy)]
    started = start(*command, **environment)
    started.wait_for(lambda: "against float64" in started.said())
    assert len([line for line in started.processes().values() if "e2e.zygote" in line]) >= 2
    return started


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_cis_time_limit_in_the_middle_keeps_the_result_and_leaves_nothing(
    start: Start, tiny_workload: Path, tiny_policy: Path, how: signal.Signals
) -> None:
    started = waiting(start, tiny_workload, tiny_policy)
    started.process.send_signal(how)
    ended = started.end(timeout_s=10)
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert started.left_behind() == {}
    assert list(started.scratch.iterdir()) == []
    result = ended.result
    assert result.error is not None
    assert (result.error.code, result.outcome) == (130, None)
    evidence = result.cells[0].evidence
    assert evidence.engagement is not None
    assert evidence.engagement.sites_found == tiny.SITES, "what was known is kept"
    assert ended.folder is not None
    assert all((ended.folder / f"report.{style}").exists() for style in ("md", "html"))


def test_a_second_ctrl_c_during_the_clean_up_still_leaves_no_process(
    start: Start, tiny_workload: Path, tiny_policy: Path
) -> None:
    started = waiting(start, tiny_workload, tiny_policy)
    for _ in range(3):
        started.process.send_signal(signal.SIGINT)
        time.sleep(0.005)
    ended = started.end(timeout_s=10)
    assert ended.code == 130
    assert started.left_behind() == {}


def test_when_the_parent_is_killed_every_process_goes_with_it(
    start: Start, tiny_workload: Path, tiny_policy: Path
) -> None:
    started = waiting(start, tiny_workload, tiny_policy)
    started.process.send_signal(signal.SIGKILL)
    started.process.wait(10)
    assert started.left_behind() == {}


def test_also_where_namespaces_are_refused(
    start: Start, tiny_workload: Path, tiny_policy: Path, tmp_path: Path
) -> None:
    refusing = tmp_path / "bin" / "unshare"
    refusing.parent.mkdir()
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    path = os.pathsep.join([str(refusing.parent), os.environ["PATH"]])
    started = waiting(start, tiny_workload, tiny_policy, PATH=path)
    assert not any("unshare" in command for command in started.processes().values())
    started.process.kill()
    started.process.wait(10)
    assert started.left_behind() == {}


def test_a_run_that_is_killed_between_two_workers_goes_on_with_those_that_are_done(
    start: Start, tiny_workload: Path, tmp_path: Path
) -> None:
    command = [
        "validate",
        str(tiny_workload),
        "--kernel",
        str(GOOD),
        "--policy",
        str(quick_policy(tmp_path / "q.yaml")),
    ]
    started = start(*command)
    started.wait_for(lambda: "worker 3 of at least" in started.said())
    started.process.kill()
    started.process.wait(10)
    assert started.left_behind() == {}
    (folder,) = started.out.iterdir()
    before = unfinished.load(folder).result
    ended = start("validate", "--resume", str(folder)).end()
    assert ended.code in (0, 10, 11), ended.err
    assert list(differences(before, ended.result, whole=ended.result)) == []
    evidence = ended.result.cells[0].evidence
    assert [item.workers_finished for item in ended.result.resumed] == [2]
    assert evidence.workers_finished == 5 or evidence.budget_exhausted
    assert evidence.audit is not None
    assert evidence.audit.mismatches == []
    assert evidence.audit.steps_committed == evidence.audit.steps_timed > 0


# ---- Verdicts


@pytest.fixture(scope="module")
def verdict_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_policy(tmp_path_factory.mktemp("verdict") / "verdict.yaml", traces=True)


def test_a_whole_run_ends_in_a_verdict_whose_parts_agree(
    validate: Callable[..., Ended], start: Start, verdict_policy: Path
) -> None:
    ended = validate(GOOD, policy=verdict_policy, until="verdict")
    result, folder = ended.result, ended.folder
    assert folder is not None
    assert ended.code in (0, 10, 11)
    assert result.outcome in (Outcome.CONFIRMED, Outcome.REFUTED, Outcome.INCONCLUSIVE)
    evidence = result.cells[0].evidence

    arms = {arm.name: arm for arm in evidence.arms}
    assert {arm.role for arm in arms.values()} >= {Role.BASELINE, Role.CANDIDATE, Role.HEADROOM}
    assert evidence.baseline in arms
    assert evidence.candidate == "candidate:eager"

    if result.label != "no_headroom":
        assert {segment.arm for segment in evidence.segments if segment.phase == "verdict"} >= {
            evidence.baseline, evidence.candidate, f"sham:{str(evidence.baseline).partition(':')[2]}",
        }  # fmt: skip
        assert result.latency is not None
        assert result.latency.sham is not None
        assert evidence.workers_finished == 5 or evidence.budget_exhausted
        assert evidence.audit is not None
        assert evidence.audit.mismatches == []
        assert evidence.audit.steps_committed == evidence.audit.steps_timed > 0
        assert evidence.audit.steps_audited >= 0.03 * evidence.audit.steps_timed

    with (folder / "samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(evidence.segments) > 0
    assert all(float(row["seconds"]) > 0 for row in rows)
    blocks: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        blocks.setdefault((row["phase"], row["worker"], row["block"]), []).append(row)
    for block in blocks.values():
        names = [row["arm"] for row in sorted(block, key=lambda row: int(row["position"]))]
        assert names == names[::-1], "every block is mirrored"
        half = len(names) // 2
        starts = [row["seed"] for row in sorted(block, key=lambda row: int(row["position"]))]
        assert len(set(starts[:half])) == len(set(starts[half:])) == 1

    assert {trace.arm for trace in evidence.traces} >= {evidence.baseline, evidence.candidate}
    assert all((folder / trace.path).exists() for trace in evidence.traces)
    assert (folder / "kernel" / GOOD.name).read_bytes() == GOOD.read_bytes()
    opponents = {row.arm for row in result.latency.against} if result.latency is not None else set()
    assert {item.arm for item in evidence.trace_differences} >= opponents
    assert all(item.op_s and item.candidate_op_s for item in evidence.trace_differences), "ranges around the op"
    if opponents:
        row = result.latency.against[0]
        change = 1e6 * (row.candidate_step_s - row.arm_step_s)
        assert sum(line.microseconds_per_step for line in result.attribution) == pytest.approx(change)
        compile((folder / "reproduce.py").read_text(), "reproduce.py", "exec")

    gated = subprocess.run(
        [sys.executable, "-m", "e2e", "gate", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert gated.returncode == ended.code
    shown = subprocess.run(
        [sys.executable, "-m", "e2e", "report", str(folder), "--format", "md"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 0
    assert shown.stdout == (folder / "report.md").read_text()
    told = subprocess.run(
        [sys.executable, "-m", "e2e", "report", str(folder), "--format", "json"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(told.stdout)["outcome"] == result.outcome


def test_a_kernel_that_trains_faster_is_seen_to_by_whole_training_steps(start: Start, verdict_policy: Path) -> None:
    kernel = REPOSITORY / "tests" / "kernels" / "leaky_integrator_train.py"
    workload = ["validate", "workloads/planted_slow_op.yaml", "--set", "step=train", "--set", "cells.sequence=[96]"]
    ended = start(*workload, "--kernel", str(kernel), "--policy", str(verdict_policy), "--no-trace").end()
    assert ended.code == 0 or set(ended.reasons) <= {"budget_exhausted", "too_few_workers", "noisy", "not_steady",
                                                     "contention"}, "only a busy machine may keep it open"  # fmt: skip
    assert ended.result.latency is not None
    gain = ended.result.latency.against[0].speedup
    assert gain is not None
    assert gain.point_estimate > 1.1
    evidence = ended.result.cells[0].evidence
    assert evidence.training is not None
    assert [path.code for path in evidence.training.paths] == [None, None]
    assert evidence.audit is not None
    assert evidence.audit.mismatches == evidence.audit.disagreements == []
    assert evidence.audit.steps_compared > 50
    assert ended.result.latency is not None
    assert ended.result.latency.ceiling is not None


def test_a_kernel_adopted_earlier_is_an_opponent_with_an_interval_of_its_own(
    validate: Callable[..., Ended], tmp_path: Path
) -> None:
    rules = tiny.write_policy(tmp_path / "adopted.yaml")
    opponent = "kernel:kernels/rmsnorm.cpp"
    rules.write_text(rules.read_text() + f"opponents: [best_pytorch, '{opponent}']\ndecides: '{opponent}'\n")
    result = validate(GOOD, policy=rules, until="verdict").result
    evidence = result.cells[0].evidence
    assert evidence.adopted == {opponent: f"baseline:eager+{opponent}"}
    assert evidence.baseline is not None and opponent not in evidence.baseline, "it is no path of PyTorch's own"
    if result.label != "no_headroom":
        assert result.latency is not None
        assert {row.opponent for row in result.latency.against} == {"best_pytorch", opponent}


def test_a_kernel_that_turns_stale_later_is_never_confirmed(
    validate: Callable[..., Ended], verdict_policy: Path
) -> None:
    """It passes every check of its first calls, and is fast because it does nothing afterwards."""
    ended = validate(BAD / "stale_later.py", "--no-trace", policy=verdict_policy, until="verdict")
    assert ended.result.outcome is Outcome.INCORRECT
    assert ended.code == 12
    assert ended.reasons[0] == "stale_output"


def test_a_run_asked_to_stop_at_the_screen_shows_a_ceiling_and_confirms_nothing(
    validate: Callable[..., Ended], tiny_policy: Path
) -> None:
    ended = validate(GOOD, until="screen")
    assert ended.result.outcome is not Outcome.CONFIRMED
    assert (ended.code == 0) == (ended.result.outcome is None)
    assert ended.result.latency is not None
    assert ended.result.latency.ceiling is not None
    assert ended.result.stage is Stage.SCREEN

"""The fixtures that CI has time for, in one process after the other; `python -m tests.cheats` runs all of them."""

from __future__ import annotations

import pytest

from e2e.measure.devices import cuda_devices
from tests.cheats.__main__ import main


@pytest.mark.slow
def test_every_cheat_of_the_short_list_is_caught_and_no_honest_kernel_is_accused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--ci"]) == 0, capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.slow
def test_every_cheat_that_needs_a_gpu_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda_devices()
    assert main(["--device", "cuda"]) == 0, capsys.readouterr().out

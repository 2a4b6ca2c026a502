"""Hugging Face kernels: the layer, the variant for this machine, what the class says of itself."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest

from e2e.reading import read_kernel
from tests.formats.bound import HERE, bound, check_norm, refusal

PROJECT = HERE / "hf_kernels" / "small_norms"
PACKAGE = PROJECT / "torch-ext" / "small_norms"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


def built(project: Path, variant: str, *, inner: str = "") -> Path:
    """Move the package into build/VARIANT/, as the builder leaves it."""
    place = project / "build" / variant / inner
    shutil.copytree(PACKAGE, place, dirs_exist_ok=True)
    return place


def this_torch() -> str:
    version, _, local = importlib.metadata.version("torch").partition("+")
    major, minor = version.split(".")[:2]
    return f"torch{major}{minor}-cxx11-{local or 'cu130'}-x86_64-linux"


def test_a_layer_of_a_project_without_compiled_kernels_is_read_from_its_source(tmp_path: Path) -> None:
    kernel = read_kernel(f"{PROJECT}#SmallRMSNorm", op=None)
    assert (kernel.format, kernel.manifest.op, kernel.manifest.binding) == ("hf_kernels", "rms_norm", "module")
    assert (kernel.manifest.entry, kernel.path) == ("layers.SmallRMSNorm", str(PACKAGE / "__init__.py"))
    assert {Path(other).name for other in kernel.others} == {"_norm.py", "layers.py"}
    check_norm(bound(kernel, tmp_path))


def test_what_its_class_says_of_itself_is_noted() -> None:
    assert read_kernel(f"{PROJECT}#SmallRMSNorm", op=None).notes == [
        "SmallRMSNorm states can_torch_compile = True, has_backward = False",
        "has_backward = False: a training step with it has no gradients",
    ]
    assert read_kernel(f"{PROJECT}#Doubled", op="silu_mul").notes == ["Doubled states nothing of backward or compiling"]


def test_a_layer_that_names_no_op_asks_for_one() -> None:
    assert "small_norms#Doubled: which op does it replace? Pass --op NAME" in refusal(f"{PROJECT}#Doubled")


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("", "small_norms: which layer?; it has: SmallRMSNorm, Doubled; name one as "),
        ("#SmalRMSNorm", "no layer called 'SmalRMSNorm'; did you mean 'SmallRMSNorm'?"),
        ("#", "no layer called ''; it has: SmallRMSNorm, Doubled"),
    ],
)
def test_the_layers_that_there_are_are_named(layer: str, said: str) -> None:
    assert said in refusal(f"{PROJECT}{layer}")


@pytest.mark.parametrize("inner", ["", "small_norms"])
@pytest.mark.parametrize("variant", [this_torch(), "torch-universal"])
def test_the_build_for_this_machine_comes_before_the_source(
    project: Path, tmp_path: Path, variant: str, inner: str
) -> None:
    place = built(project, variant, inner=inner)
    built(project, "torch11-cxx11-cu118-x86_64-linux")
    kernel = read_kernel(f"{project}#SmallRMSNorm", op=None)
    assert kernel.path == str(place / "__init__.py")
    check_norm(bound(kernel, tmp_path))


def test_a_build_for_this_very_torch_comes_before_a_universal_one(project: Path) -> None:
    built(project, "torch-universal")
    place = built(project, this_torch())
    assert read_kernel(f"{project}#SmallRMSNorm", op=None).path == str(place / "__init__.py")


def test_builds_for_other_machines_only_are_told(project: Path) -> None:
    built(project, "torch11-cxx11-cu118-x86_64-linux")
    said = refusal(f"{project}#SmallRMSNorm")
    assert f"no build for this machine (torch {importlib.metadata.version('torch')}" in said
    assert "it has: torch11-cxx11-cu118-x86_64-linux" in said


def test_what_a_build_needs_is_noted(project: Path) -> None:
    place = built(project, "torch-universal")
    (place / "metadata.json").write_text('{"python-depends": ["einops"]}')
    assert "it needs einops" in read_kernel(f"{project}#SmallRMSNorm", op=None).notes


def test_compiled_kernels_must_be_built_first(project: Path) -> None:
    with (project / "build.toml").open("a") as config:
        config.write('\n[kernel.norm_cuda]\nbackend = "cuda"\n')
    assert "it has kernels to compile (norm_cuda); build it first" in refusal(f"{project}#SmallRMSNorm")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[general\n", "project/build.toml: not readable as TOML"),
        ("[general]\n", "project/build.toml: general.name: missing; it is required"),
    ],
)
def test_a_damaged_build_file_is_told_with_its_field(project: Path, config: str, said: str) -> None:
    (project / "build.toml").write_text(config)
    assert said in refusal(f"{project}#SmallRMSNorm").replace("#SmallRMSNorm", "")


def test_layers_that_do_not_parse_are_told_with_their_line(project: Path) -> None:
    (project / "torch-ext" / "small_norms" / "layers.py").write_text("\nclass A(\n")
    assert "layers.py:2: not Python" in refusal(f"{project}#A")


def test_a_project_without_a_package_is_told(tmp_path: Path) -> None:
    (tmp_path / "torch-ext").mkdir()
    assert "no Python package in build/VARIANT/ or torch-ext/" in refusal(f"{tmp_path}#A")


def test_other_folders_are_no_projects(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)

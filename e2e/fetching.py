"""A model's files from the hub, by the parent: no process that could hold a candidate gets a hub token. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import ModelSpec

_TEXTS = (".json", ".txt", ".model", ".jinja")
_SETS = (("model.safetensors.index.json", "model-"), ("model.safetensors", "model.safetensors"))
_OLDER = (("pytorch_model.bin.index.json", "pytorch_model-"), ("pytorch_model.bin", "pytorch_model.bin"))
"""Which file says that weights are of a kind, and what their names begin with; what Transformers takes, first."""


def fetch(repository: str, spec: ModelSpec) -> None:
    """Bring what Transformers will ask for into the hub's own cache, with the caller's token where there is one.

    Raises:
        UsageError: no such repository or revision.
        EnvironmentFault: it is not for everybody, or the download ended.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    revision = spec.revision or "main"
    try:
        files = HfApi().list_repo_files(repository, revision=revision)
        needed = wanted(files, with_weights=spec.weights == "pretrained", with_code=spec.trust_remote_code)
        snapshot_download(repository, revision=revision, allow_patterns=needed)
    except GatedRepoError as error:
        remedy = f"accept its terms on its page, then set HF_TOKEN for this command ({_first_line(error)})"
        raise EnvironmentFault(f"{repository} is not for everybody: {remedy}") from error
    except RevisionNotFoundError as error:
        raise UsageError(f"model.revision: {repository} has no {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise UsageError(f"model.id: no {repository!r} on the hub, or it needs a token (HF_TOKEN)") from error
    except (OSError, ValueError) as error:  # the hub's own errors are of the first kind
        raise EnvironmentFault(f"{repository} could not be downloaded: {_first_line(error)}") from error


def wanted(files: Sequence[str], *, with_weights: bool, with_code: bool) -> list[str]:
    """The files that a model is loaded from, of all at the top of its repository; weights in one form only."""
    top = [name for name in files if "/" not in name]
    needed = [name for name in top if name.endswith(_TEXTS) or (with_code and name.endswith(".py"))]
    start = next((start for named, start in (*_SETS, *_OLDER) if named in top), None)
    if with_weights and start is not None:
        needed += [name for name in top if name.startswith(start) and name not in needed]
    return needed


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]

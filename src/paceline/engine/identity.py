"""What measurements depend on: the machine, the library versions, and the models as their content names them."""

from __future__ import annotations

import os
import platform
from functools import cache
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

from paceline.models.load import Model

_LIBRARIES = {"openvino": ("paceline", "openvino"), "torch": ("paceline", "torch", "transformers")}
_READ_ANYWAY = ("int4", "int8")
"""Weights for which a model's whole content has been read before anything is measured."""


@cache
def machine() -> dict[str, str | int]:
    """Return what tells this machine from those that run at another speed; its name does not, containers change it."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"system": platform.system(), "kind": platform.machine(), "processor": _processor(), "cpus": cpus}


def versions(runner: str) -> dict[str, str]:
    """Return the versions of what runs passes."""
    return {name: _version(name) for name in _LIBRARIES.get(runner, ("paceline",))}


def content(model: Model, weights: str) -> str:
    """Return what names a model's content.

    The digest of every byte where it is known anyway; else of the names, sizes and times of its files, for reading
    them all takes longer than a profile.
    """
    source, checkpoint = model.source, model.checkpoint
    if source.kind == "toy":
        return source.id
    if checkpoint is not None and (source.kind == "gguf" or weights in _READ_ANYWAY):
        return checkpoint.weights.fingerprint
    return listed(source.path)


def listed(directory: Path) -> str:
    """Return a digest of the names, sizes and times of a directory's files."""
    found = []
    for path in sorted(directory.iterdir()):
        stat = path.stat()
        found.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return blake2b("\n".join(found).encode(), digest_size=16).hexdigest()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            named = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else platform.processor()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""

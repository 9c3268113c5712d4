"""A GGUF file as a directory that transformers and vLLM read: `to_hf.py FILE.gguf DIRECTORY`, weights in bfloat16."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    import torch
    import transformers

    source, directory = Path(sys.argv[1]), Path(sys.argv[2])
    where, name = str(source.parent), source.name
    options = {}
    if hasattr(transformers, "GgufConfig"):  # versions that would keep the weights packed
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.bfloat16, **options)
    model.save_pretrained(directory)
    transformers.AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(directory)


if __name__ == "__main__":
    main()

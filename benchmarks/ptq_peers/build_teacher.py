"""GGUF file -> float32 Hugging Face directory, the one teacher of every method compared here.

python build_teacher.py MODEL.gguf TEACHER_DIR
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def build_teacher(gguf: Path, directory: Path) -> None:
    """Dequantize `gguf` to float32 and save model and tokenizer without the quantizer's marks.

    transformers keeps the marks of the GGUF quantizer on the model; saved with them, the directory
    would be read as a quantized one and refused.
    """
    folder, file = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    if hasattr(model, "hf_quantizer"):
        del model.hf_quantizer
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    build_teacher(arguments.gguf, arguments.directory)


if __name__ == "__main__":
    main()

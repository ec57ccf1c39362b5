"""python -m scripts.gguf_model FILE DIRECTORY: write a GGUF file's model as a directory."""

import argparse
from pathlib import Path

from scripts.gguf_model.convert import convert


def main() -> None:
    """Read the arguments and convert."""
    parser = argparse.ArgumentParser(prog="python -m scripts.gguf_model", description=__doc__)
    parser.add_argument("file", type=Path, help="a GGUF file of a Llama")
    parser.add_argument("directory", type=Path, help="to write; made if it is not there")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    arguments = parser.parse_args()
    convert(arguments.file, arguments.directory, arguments.dtype)


if __name__ == "__main__":
    main()

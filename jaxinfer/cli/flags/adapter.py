"""The flag of commands that answer all prompts with one LoRA adapter."""

import argparse
from pathlib import Path
from typing import Any


def add_lora_flag(parser: argparse.ArgumentParser) -> None:
    """Add --lora; left out, it is absent from the parsed arguments."""
    parser.add_argument(
        "--lora",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="a LoRA adapter's directory, as PEFT saves it, to answer with (default: none)",
    )


def adapter_directory(namespace: argparse.Namespace) -> str | None:
    """The directory that the user gave."""
    return getattr(namespace, "lora", None)


def adapter_settings(directory: str | None) -> dict[str, Any]:
    """The engine's arguments for an adapter, whose files are read; none without one.

    Raises:
        ModelLoadError: they are missing or wrong, or of a rank above an engine's largest.
    """
    if directory is None:
        return {}
    from jaxinfer.config import MAX_LORA_RANK
    from jaxinfer.errors import ModelLoadError
    from jaxinfer.model.adapters.peft_files import read_peft

    found = read_peft(Path(directory).expanduser())
    rank = max((each.shapes[0][0] for each in found.values()), default=1)
    if rank > MAX_LORA_RANK:
        raise ModelLoadError(
            f"{directory}: an adapter of rank {rank}; --lora takes ranks up to {MAX_LORA_RANK}; "
            f"merge it into the weights: jaxinfer convert MODEL DIRECTORY --merge {directory}"
        )
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}

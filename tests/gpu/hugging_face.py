"""Hugging Face's logits of given sequences, from a process of its own that never sees the GPU.

Torch and JAX in one process would share CUDA libraries that only one of them has chosen.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

_DTYPES = ("float32", "bfloat16")


class HuggingFace:
    """Starts the process at once, so that it imports torch while the engine works.

    Args:
        directory: for what the two processes hand each other.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._asked = 0
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.hugging_face"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).resolve().parents[2],
        )

    def logits(
        self, model: Path, sequences: list[list[int]], num_outputs: int
    ) -> dict[str, list[np.ndarray]]:
        """Float32 logits ``[num_outputs, V]`` of each sequence's last tokens, by dtype computed in.

        Raises:
            RuntimeError: the process ended; what it said is on stderr.
        """
        self._asked += 1
        question = self._directory / f"question-{self._asked}.json"
        answer = self._directory / f"answer-{self._asked}.npz"
        asked = {"model": str(model), "sequences": sequences, "num_outputs": num_outputs}
        question.write_text(json.dumps(asked))
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        print(question, answer, file=self._process.stdin, flush=True)
        if not self._process.stdout.readline():
            raise RuntimeError(f"transformers failed with status {self._process.wait()}")
        with np.load(answer) as arrays:
            return {dtype: list(arrays[dtype]) for dtype in _DTYPES}

    def __enter__(self) -> "HuggingFace":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Answer questions until stdin ends."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()

    models: dict[tuple[str, str], Any] = {}
    for line in sys.stdin:
        question, answer = line.split()
        asked = json.loads(Path(question).read_text())
        found = {}
        for dtype in _DTYPES:
            key = asked["model"], dtype
            if key not in models:
                models[key] = transformers.AutoModelForCausalLM.from_pretrained(
                    asked["model"], dtype=getattr(torch, dtype)
                ).eval()
            found[dtype] = np.stack(
                [_last_logits(models[key], ids, asked["num_outputs"]) for ids in asked["sequences"]]
            )
        np.savez(answer, **found)
        print("done", flush=True)


def _last_logits(model: Any, token_ids: list[int], count: int) -> np.ndarray:
    import torch

    with torch.inference_mode():
        # The last token's own logits would be of the token after it.
        logits = model(torch.tensor([token_ids[:-1]])).logits[0, -count:]
    return logits.float().numpy()


if __name__ == "__main__":
    main()

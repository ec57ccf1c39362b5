"""Hugging Face's logits of given sequences, from a process of its own that never sees the GPU.

Torch and JAX in one process would share CUDA libraries that only one of them has chosen.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

EXACT, ROUNDED, SHARP = "float32", "bfloat16", "bfloat16, float32 head"
_WAYS = (EXACT, ROUNDED, SHARP)


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
        """Logits ``[num_outputs, V]`` of each sequence's last tokens, as float32.

        Returns:
            Lists by the way they were computed: `EXACT`, all in float32; `ROUNDED`, all in
            bfloat16, the logits too, as Hugging Face does it; `SHARP`, the same up to the last
            hidden state, whose product with the head is kept in float32, as the engine does it.

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
            return {way: list(arrays[way]) for way in _WAYS}

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

    @functools.cache
    def load(directory: str, dtype: torch.dtype) -> Any:
        # Defaults of some families name a padding token beyond these vocabularies.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, pad_token_id=0
        )
        return model.eval()

    for line in sys.stdin:
        question, answer = line.split()
        asked = json.loads(Path(question).read_text())
        models = [load(asked["model"], dtype) for dtype in (torch.float32, torch.bfloat16)]
        rows = [_answer(*models, ids, asked["num_outputs"]) for ids in asked["sequences"]]
        found = {way: np.stack([row[i] for row in rows]) for i, way in enumerate(_WAYS)}
        np.savez(answer, **found)
        print("done", flush=True)


def _answer(exact: Any, rounded: Any, token_ids: list[int], count: int) -> list[np.ndarray]:
    """Logits ``[count, V]`` of the last tokens in each of `_WAYS`."""
    import torch

    # The last token's own logits would be of the token after it.
    inputs = torch.tensor([token_ids[:-1]])
    with torch.inference_mode():
        hidden = rounded.model(inputs).last_hidden_state
        logits = (
            exact(inputs).logits,
            rounded.lm_head(hidden),
            hidden.float() @ rounded.lm_head.weight.float().T,
        )
    return [each[0, -count:].float().numpy() for each in logits]


if __name__ == "__main__":
    main()

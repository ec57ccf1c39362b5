"""jaxinfer as tunix's rollout engine: ``ClusterConfig(rollout_engine=JaxinferRollout)``."""

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.integrations.tunix_settings import (
    choose_pad,
    completion_logprobs,
    drawn_seed,
    engine_mesh,
    left_padded,
    lora_rank,
    model_config,
    neighbours,
    sampling_params,
    sharding_rules,
)
from jaxinfer.optional import import_optional
from jaxinfer.rollouts.mapping import ParamsMapping
from jaxinfer.rollouts.trees import leaves_by_path
from jaxinfer.serving.llm import LLM

_SHARE_OF_MEMORY = 0.4
_POLICY = "policy"
"""The name of the actor's adapter in the engine."""
_NO_ALPHA = (
    "the actor has LoRA adapters, whose scale is alpha / rank, and its arrays don't tell alpha; "
    "give LoraRule's: functools.partial(JaxinferRollout, lora_alpha=...)"
)
_NO_LORA = (
    "the actor had no LoRA adapters when this JaxinferRollout was made; apply them to the model "
    "before the cluster is"
)


def _tunix(module: str) -> Any:
    install = "google-tunix==0.1.7"
    return import_optional(f"tunix.{module}", needed_by=__name__, install=install)


base_rollout = _tunix("rl.rollout.base_rollout")
_has_lora = _tunix("sft.utils").is_lora_enabled
_Known = dict[tuple[bytes, bytes], np.ndarray]


class JaxinferRollout(base_rollout.BaseRollout):
    """Rollouts of a tunix `Qwen3` by a jaxinfer engine on the rollout mesh.

    Equal neighbouring prompts are one request. End tokens stay in `tokens`, with their
    log-probabilities, which are of ``log_softmax(logits / temperature)`` without truncation, as
    tunix's trainer computes them. The engine owns its parameters: every sync is one program that
    writes into the memory of the last ones. Of an actor with qwix's LoRA adapters the engine takes
    the weights once, and every sync is a new version of one adapter.

    Args:
        rollout_actor: the trainer's `Qwen3`, given by tunix, as the next three.
        tokenizer: tunix's `TokenizerAdapter`.
        mesh: of ``fsdp`` and ``tp``, or without one or both.
        rollout_config: `RolloutConfig` of training.
        pad_token_id: None takes an id that is never sampled; tunix reads it with `pad_id`.
        lora_alpha: of the `LoraRule` that gave the actor its adapters; None without adapters.
        engine_options: keywords of `LLM`, by `functools.partial`. The default of `max_model_len` is
            what the rollout config needs, that of `gpu_memory_utilization` 0.4, since the trainer
            has the rest; that of `max_lora_rank` the rank of the adapters.

    Raises:
        TypeError, ValueError: the model is no dense Qwen3, its adapters are of several ranks or of
            what is no projection of a layer, `lora_alpha` is missing, or as `LLM`.
    """

    def __init__(
        self,
        rollout_actor: Any,
        tokenizer: Any,
        mesh: jax.sharding.Mesh,
        rollout_config: Any,
        pad_token_id: int | None = None,
        lora_alpha: float | None = None,
        **engine_options: Any,
    ) -> None:
        adapter = _lora_params(rollout_actor) if _has_lora(rollout_actor) else None
        rank = None if adapter is None else lora_rank(leaves_by_path(adapter))
        self._scale = _scale(lora_alpha, rank)
        own = rollout_config.max_prompt_length + rollout_config.max_tokens_to_generate
        longest = max(own, rollout_config.kv_cache_size)
        config = model_config(rollout_actor.config, longest)
        self._tokenizer = tokenizer
        self._ends = _end_token_ids(rollout_config, tokenizer)
        plain = getattr(tokenizer, "tokenizer", tokenizer)
        self._pad = choose_pad(pad_token_id, self._ends, config.vocab_size, plain)
        self._mapping = ParamsMapping.tunix_qwen3(config)
        self._calls = 0
        self._known: _Known = {}
        dtype = rollout_config.data_type
        defaults = {
            "dtype": "auto" if dtype is None else jnp.dtype(dtype).name,
            "max_model_len": longest,
            "gpu_memory_utilization": _SHARE_OF_MEMORY,
            "show_progress": False,
        }
        if rank is not None:
            defaults |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
        self.llm = LLM(
            params=_tunix_params(rollout_actor),
            mapping=self._mapping,
            config=config,
            mesh=engine_mesh(mesh),
            rules=sharding_rules(mesh.axis_names),
            logprobs_mode="temperature_logprobs",
            **(defaults | engine_options),
        )
        self._adapter = None if adapter is None else _POLICY
        if adapter is not None:
            self.llm.load_adapter(_POLICY, adapter, scale=self._scale)

    def generate(self, prompts: list[str], rollout_config: Any, **_: Any) -> Any:
        """Complete prompts.

        Args:
            prompts: texts; B of them.
            rollout_config: tunix's `RolloutConfig`, of training or evaluation. With a `seed`, each
                call of this object draws differently, but a run can be repeated.

        Returns:
            `RolloutOutput` of B rows; no logits.

        Raises:
            ValueError: a prompt is longer than `max_prompt_length`, or a setting is out of range.
            StepError: a completion failed.
        """
        ends = _end_token_ids(rollout_config, self._tokenizer)
        if self._pad in ends:
            raise ValueError(f"eos_tokens has {self._pad}, which is the padding's id")
        groups = neighbours(prompts)
        ids = [self._encode(prompt) for prompt, _ in groups]
        rows = [row for row, (_, n) in zip(ids, groups, strict=True) for _ in range(n)]
        padded = left_padded(rows, rollout_config.max_prompt_length, self._pad)
        params = [
            sampling_params(
                rollout_config, ends, n, drawn_seed(rollout_config.seed, (self._calls, i))
            )
            for i, (_, n) in enumerate(groups)
        ]
        self._calls += 1
        outputs = self.llm.generate(ids, params, use_tqdm=False, lora_request=self._adapter)
        completions = [each for output in outputs for each in output.outputs]
        tokens = [np.asarray(each.token_ids, np.int32) for each in completions]
        logprobs = [completion_logprobs(each) for each in completions]
        self._warn_of_pads(tokens)
        for prompt, row, values in zip(rows, tokens, logprobs, strict=True):
            self._known[_key(prompt, row)] = values
        return base_rollout.RolloutOutput(
            text=[self._decode(row, ends) for row in tokens],
            logits=None,
            tokens=tokens,
            left_padded_prompt_tokens=padded,
            logprobs=logprobs,
        )

    def get_per_token_logps(self, prompt_tokens: Any, completion_tokens: Any) -> jax.Array:
        """Log-probabilities of completions under the engine's weights.

        Completions that `generate` made since the last sync keep the log-probabilities of their
        draw, at its temperature, as the trainer's ratios need; others are scored at temperature 1.

        Args:
            prompt_tokens: int ``[B, P]``, padded on the left with `pad_id`.
            completion_tokens: int ``[B, C]``, padded on the right.

        Returns:
            float32 ``[B, C]``; 0 where padding is.
        """
        prompts = _unpadded(prompt_tokens, self._pad)
        completions = _unpadded(completion_tokens, self._pad)
        pairs = list(zip(prompts, completions, strict=True))
        unknown = [p for p in pairs if _key(*p) not in self._known and len(p[1])]
        asked = [(prompt.tolist(), completion.tolist()) for prompt, completion in unknown]
        scores = self.llm.score(asked, lora_request=self._adapter) if asked else []
        scored = {
            _key(*pair): np.asarray(score.token_logprobs[score.start :], np.float32)
            for pair, score in zip(unknown, scores, strict=True)
        }
        logps = np.zeros(np.shape(completion_tokens), np.float32)
        for row, pair in enumerate(pairs):
            values = self._known.get(_key(*pair), scored.get(_key(*pair), ()))
            logps[row, : len(values)] = values
        return jnp.asarray(logps)

    def update_params(self, params: Any, filter_types: tuple[Any, ...] | None = None) -> None:
        """Take the trainer's weights, or its adapters; completions that run keep the last ones.

        Weights wait for these to end, and the prefix cache forgets everything. Adapters wait for
        nothing, since a completion keeps the version that it began with.

        Args:
            params: `nnx.state(actor, nnx.Param)`, or of `nnx.LoRAParam`.
            filter_types: what tunix filtered them by.

        Raises:
            ValueError: they are adapters, which the actor did not have before.
            ValueError, TypeError: as `LLM.update_params` and `LLM.update_adapter`; weights and
                adapters are as they were.
        """
        if any("LoRA" in getattr(each, "__name__", "") for each in filter_types or ()):
            if self._adapter is None:
                raise ValueError(_NO_LORA)
            self.llm.update_adapter(self._adapter, params, scale=self._scale)
        else:
            self.llm.update_params(params, self._mapping, in_flight="wait")
        self._known.clear()

    def pad_id(self) -> int:
        """An id that no completion holds; not necessarily the tokenizer's own padding."""
        return self._pad

    def eos_id(self) -> int:
        """The tokenizer's end token."""
        return self._tokenizer.eos_id()

    def model(self) -> None:
        """None: no array is shared with the actor, so tunix syncs after every step."""
        return None

    def close(self) -> None:
        """End the engine and free its memory. Safe to repeat."""
        self.llm.close()

    def _encode(self, prompt: str) -> list[int]:
        ids = list(self._tokenizer.encode(prompt))
        start = self._tokenizer.bos_id()
        return list(self._tokenizer.dedup_bos_ids([start, *ids] if start else ids))

    def _decode(self, row: np.ndarray, ends: Sequence[int]) -> str:
        ids = row.tolist()
        return self._tokenizer.decode(ids[:-1] if ids and ids[-1] in ends else ids)

    def _warn_of_pads(self, tokens: Sequence[np.ndarray]) -> None:
        drawn = sum(int((row == self._pad).sum()) for row in tokens)
        if drawn:
            warnings.warn(
                f"{drawn} tokens drawn are the padding's id {self._pad}, and will be missing from "
                "the loss; give another one: functools.partial(JaxinferRollout, pad_token_id=...)",
                stacklevel=3,
            )


def _end_token_ids(config: Any, tokenizer: Any) -> list[int]:
    return list(config.eos_tokens) if config.eos_tokens else [tokenizer.eos_id()]


def _scale(alpha: float | None, rank: int | None) -> float | None:
    """What the product of the adapters' matrices is multiplied by; None without adapters."""
    if rank is None:
        if alpha is not None:
            raise ValueError(f"lora_alpha is {alpha}, and the actor has no LoRA adapters")
        return None
    if alpha is None:
        raise ValueError(_NO_ALPHA)
    return alpha / rank


def _tunix_params(actor: Any) -> Any:
    nnx = importlib.import_module("flax.nnx")
    return nnx.state(actor, nnx.All(nnx.Param, nnx.Not(nnx.LoRAParam)))


def _lora_params(actor: Any) -> Any:
    nnx = importlib.import_module("flax.nnx")
    return nnx.state(actor, nnx.LoRAParam)


def _key(prompt: Any, completion: Any) -> tuple[bytes, bytes]:
    return np.asarray(prompt, np.int32).tobytes(), np.asarray(completion, np.int32).tobytes()


def _unpadded(tokens: Any, pad: int) -> list[np.ndarray]:
    return [row[row != pad] for row in np.asarray(tokens)]

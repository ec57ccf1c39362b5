"""Translates tunix's rollout settings into jaxinfer's: pure functions, which need no tunix."""

import itertools
import warnings
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxinfer.errors import StepError
from jaxinfer.logprobs import ChosenLogprobs
from jaxinfer.model.adapters.names import paired
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.outputs import CompletionOutput
from jaxinfer.sampling_fields import RequestOutputKind
from jaxinfer.sampling_params import SamplingParams

_TUNIX_ROPE_THETA = 1_000_000


def model_config(theirs: Any, max_length: int) -> ModelConfig:
    """The shape of a tunix `Qwen3` from its `ModelConfig`.

    Args:
        theirs: `tunix.models.qwen3.model.ModelConfig`.
        max_length: the longest sequence, in tokens.

    Raises:
        TypeError: it is no configuration of a Qwen3.
        ValueError: the model is a mixture of experts.
    """
    if not hasattr(theirs, "use_tied_embedding"):
        raise TypeError(
            f"JaxinferRollout needs a tunix.models.qwen3 model; its config is a "
            f"{type(theirs).__name__}"
        )
    if theirs.num_experts:
        raise ValueError("JaxinferRollout runs dense Qwen3 models; this one has experts")
    if theirs.rope_theta != _TUNIX_ROPE_THETA:
        warnings.warn(
            f"this model's rope_theta is {theirs.rope_theta}, which the engine uses; tunix 0.1.7 "
            f"ignores the config and uses {_TUNIX_ROPE_THETA}, so its log-probabilities "
            "will differ from the rollouts'",
            stacklevel=3,
        )
    return ModelConfig(
        vocab_size=theirs.vocab_size,
        hidden_size=theirs.embed_dim,
        intermediate_size=theirs.hidden_dim,
        num_hidden_layers=theirs.num_layers,
        num_attention_heads=theirs.num_heads,
        num_key_value_heads=theirs.num_kv_heads,
        head_dim=theirs.head_dim,
        rms_norm_eps=theirs.norm_eps,
        rope_theta=float(theirs.rope_theta),
        max_position_embeddings=max_length,
        tie_word_embeddings=theirs.use_tied_embedding,
    )


def sharding_rules(axes: Collection[str]) -> ShardingRules:
    """The engine's place on tunix's mesh: heads over ``tp``, a replica at each ``fsdp``.

    An axis that the mesh lacks splits nothing.
    """
    tensor = "tp" if "tp" in axes else None
    return ShardingRules(
        vocab=tensor,
        heads=tensor,
        kv_heads=tensor,
        intermediate=tensor,
        embed=None,
        data="fsdp" if "fsdp" in axes else None,
    )


def engine_mesh(mesh: Mesh) -> Mesh:
    """The same devices and axes, whose shardings are left to the compiler, as the engine needs."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def neighbours(prompts: Sequence[str]) -> list[tuple[str, int]]:
    """Runs of equal prompts with their lengths; tunix repeats each prompt of a group."""
    return [(prompt, len(list(run))) for prompt, run in itertools.groupby(prompts)]


def sampling_params(
    config: Any, end_token_ids: Sequence[int], n: int, seed: int | None
) -> SamplingParams:
    """The parameters of one request.

    Args:
        config: tunix's `RolloutConfig`.
        end_token_ids: they end a completion, and stay in it.
        n: completions.
        seed: None draws anew each time.
    """
    return SamplingParams(
        n=n,
        max_tokens=config.max_tokens_to_generate,
        temperature=config.temperature,
        top_p=1.0 if config.top_p is None else config.top_p,
        top_k=0 if config.top_k is None else config.top_k,
        seed=seed,
        stop_token_ids=list(end_token_ids),
        logprobs=0,
        detokenize=False,
    )


def lora_rank(leaves: Mapping[str, Any]) -> int:
    """The rank of an actor's adapters.

    Args:
        leaves: matrices of LoRA by qwix's names.

    Raises:
        ValueError: a leaf is none of a layer's projection, or ranks differ; names it.
    """
    ranks = {name_a: leaves[name_a].shape[-1] for name_a, _ in paired(leaves).values()}
    first, rank = next(iter(ranks.items()))
    for name, other in ranks.items():
        if other != rank:
            raise ValueError(
                f"{first} has rank {rank}, and {name} {other}; JaxinferRollout takes adapters of "
                "one rank, whose scale is one number"
            )
    return rank


def request_params(
    given: Any, request_id: str, place: int, *, with_logprobs: bool
) -> SamplingParams:
    """The parameters of one request of tunix's `Sampler`.

    Args:
        given: its `SamplingParams`.
        request_id: makes draws of one seed differ, as `place` does.
        place: of the request in its call.
        with_logprobs: whether those of the tokens are wanted.

    Raises:
        ValueError: it wants logits or beams, or has a setting out of range.
    """
    for name in ("return_logits", "beam_size"):
        if getattr(given, name, None):
            raise ValueError(f"JaxinferSampler has no {name}; leave it out")
    words = (zlib.crc32(request_id.encode()), place)
    return SamplingParams(
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        top_p=1.0 if given.top_p is None else given.top_p,
        top_k=0 if given.top_k is None else given.top_k,
        seed=drawn_seed(given.seed, words),
        logprobs=0 if with_logprobs else None,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def drawn_seed(given: Any, words: Sequence[int]) -> int | None:
    """A seed that differs with `words`, from the int or key that tunix has; None stays None."""
    if given is None:
        return None
    if isinstance(given, jax.Array) and jax.dtypes.issubdtype(given.dtype, jax.dtypes.prng_key):
        given = jax.random.key_data(given)
    own = np.atleast_1d(np.asarray(given)).astype(np.uint32).tolist()
    return int(np.random.SeedSequence([*own, *words]).generate_state(1)[0] >> 1)


def completion_logprobs(completion: CompletionOutput) -> np.ndarray:
    """Log-probabilities of a completion's tokens, float32 ``[T]``.

    Raises:
        StepError: it failed, and has none.
    """
    if not isinstance(completion.logprobs, ChosenLogprobs):
        raise StepError("a completion of a rollout failed; the engine's log says why")
    return np.asarray(completion.logprobs.values, np.float32)


def choose_pad(given: int | None, ends: Collection[int], vocab_size: int, tokenizer: Any) -> int:
    """An id for padding that completions never hold.

    Tunix masks ``ids != pad``, so a sampled padding token would leave the loss unnoticed. Qwen3's
    own one is also an end token. By default the highest id that the tokenizer has no token for is
    taken, and else its highest special token that is neither an end, a beginning nor its own pad.

    Args:
        given: the caller's choice, or None.
        ends: ids that end completions.
        vocab_size: V.
        tokenizer: of Hugging Face, or anything.

    Raises:
        ValueError: the given one ends completions or is not in the vocabulary; or there is none to
            choose.
    """
    if given is not None:
        if given in ends or not 0 <= given < vocab_size:
            raise ValueError(
                f"pad_token_id {given} must be from 0 to {vocab_size - 1} and no end token: tunix "
                "masks ids != pad, and would leave it out of the loss"
            )
        return given
    added = getattr(tokenizer, "added_tokens_decoder", {})
    used = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
    special = {i for i, token in added.items() if token.special} - used - {*ends}
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else vocab_size
    if size < vocab_size:
        return vocab_size - 1
    if not special:
        raise ValueError(
            "every id of the vocabulary is a token that may be sampled; name one for padding: "
            "functools.partial(JaxinferRollout, pad_token_id=...)"
        )
    return max(special)


def left_padded(prompts: Sequence[Sequence[int]], width: int, pad: int) -> np.ndarray:
    """Prompts as tunix's trainer takes them, int32 ``[B, width]``.

    Raises:
        ValueError: one is longer; names it.
    """
    padded = np.full((len(prompts), width), pad, np.int32)
    for i, ids in enumerate(prompts):
        if len(ids) > width:
            raise ValueError(
                f"prompt {i} has {len(ids)} tokens, but max_prompt_length is {width}; raise it in "
                "RolloutConfig"
            )
        padded[i, width - len(ids) :] = ids
    return padded

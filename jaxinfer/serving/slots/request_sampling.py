"""Prepares a request's sampling for the device, words included: the sampler knows only ids."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.model.text.bad_words import bad_word_ids
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import FreeLogprobs
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.slots.row_sampling import RowSampling, prepare_row


def request_sampling(
    request: Request,
    *,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    tokenizer: Tokenizer | None,
    free_logprobs: FreeLogprobs = "all",
) -> RowSampling:
    """What `BatchBuilder` needs to know of a request's sampling.

    Args:
        eos_token_ids: tokens that min_tokens bans.
        tokenizer: turns bad words into ids.
        free_logprobs: requests whose log-probabilities need no mode "full".

    Raises:
        ValueError: a token id is outside the vocabulary, or there are bad words and no tokenizer.
    """
    words = request.params.bad_words or ()
    if words and tokenizer is None:
        raise ValueError("bad_words needs a tokenizer; use logit_bias to ban token ids")
    return prepare_row(
        request.params,
        seed=request.seed,
        vocab_size=vocab_size,
        prompt_token_ids=np.frombuffer(request.new.prompt.packed, np.int32),
        eos_token_ids=eos_token_ids,
        bad_words_token_ids=bad_word_ids(words, tokenizer) if words and tokenizer else [],
        free_logprobs=free_logprobs,
    )

"""Beam search over an engine's own calls: each step is a batch of requests for one token."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxinfer.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from jaxinfer.errors import StepError
from jaxinfer.inputs import TokensPrompt
from jaxinfer.logprobs import LogprobsAtPosition
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput
from jaxinfer.progress import ProgressBar
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.beams.beam_rules import (
    Beam,
    ScoredBeam,
    Search,
    TransformersSearch,
    VllmSearch,
)
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.prompts import PromptReader

Generate = Callable[[list[TokensPrompt], SamplingParams], list[RequestOutput]]


def search_beams(
    generate: Generate,
    prompts: Any,
    params: BeamSearchParams,
    *,
    reader: PromptReader,
    end_token_ids: frozenset[int],
    use_tqdm: bool | Callable[..., Any] = False,
) -> list[BeamSearchOutput]:
    """Search after all prompts at once; see `LLM.beam_search`.

    Raises:
        TypeError, ValueError: before anything has run.
        StepError: a request of a step failed.
    """
    if not isinstance(params, BeamSearchParams):
        raise TypeError(f"params must be a BeamSearchParams, got {type(params).__name__}")
    ends = frozenset() if params.ignore_eos else end_token_ids
    # At temperature 1 the sampled distribution is the model's own, should the engine report that.
    request = SamplingParams(
        max_tokens=1,
        temperature=1.0,
        seed=0,
        ignore_eos=True,
        detokenize=False,
        logprobs=_num_candidates(params, len(ends), reader),
    )
    read = reader.read(prompts, num_outputs=params.max_tokens)
    searches = [_search(params, len(prompt.token_ids), end_token_ids) for prompt in read]
    make = use_tqdm if callable(use_tqdm) else None
    with ProgressBar(
        params.max_tokens, "Beam search", enabled=bool(use_tqdm), unit="token", make=make
    ) as bar:
        while any(search.running for search in searches):
            _step(generate, read, searches, request, ends)
            bar.update()
    return [
        _output(prompt, search.complete[: params.num_returned], reader.tokenizer, params)
        for prompt, search in zip(read, searches, strict=True)
    ]


def _search(params: BeamSearchParams, num_prompt_tokens: int, ends: frozenset[int]) -> Search:
    if params.score_rule == "vllm":
        return VllmSearch(params, num_prompt_tokens, ends)
    return TransformersSearch(params)


def _num_candidates(params: BeamSearchParams, num_ends: int, reader: PromptReader) -> int:
    """Continuations of each beam that can matter.

    By transformers' rule all that go on are among the `beam_width` likeliest after the tokens that
    end a beam.
    """
    is_vllm = params.score_rule == "vllm"
    wanted = 2 * params.beam_width if is_vllm else params.beam_width + num_ends
    wanted = min(wanted, reader.vocab_size)
    if wanted > reader.max_logprobs:
        widest = reader.max_logprobs // 2 if is_vllm else reader.max_logprobs - num_ends
        raise ValueError(
            f"beam_width {params.beam_width} needs {wanted} log-probabilities of each token, and "
            f"max_logprobs is {reader.max_logprobs}; lower it to {widest}, or start the engine "
            f"with max_logprobs={wanted}"
        )
    return wanted


def _step(
    generate: Generate,
    prompts: Sequence[Prompt],
    searches: Sequence[Search],
    request: SamplingParams,
    ends: frozenset[int],
) -> None:
    """Continue all running beams of all prompts by one token."""
    own = [
        _continued(prompt, beam)
        for prompt, search in zip(prompts, searches, strict=True)
        for beam in search.running
    ]
    outputs = iter(generate(own, request))
    for i, search in enumerate(searches):
        if search.running:
            found = zip(search.running, itertools.islice(outputs, len(search.running)), strict=True)
            search.advance(
                continued
                for beam, output in found
                for continued in _continuations(beam, _likeliest(output, i, request), ends)
            )


def _continued(prompt: Prompt, beam: Beam) -> TokensPrompt:
    tokens = TokensPrompt(prompt_token_ids=[*prompt.token_ids, *beam.tokens])
    if prompt.cache_salt is not None:
        tokens["cache_salt"] = prompt.cache_salt
    return tokens


def _likeliest(output: RequestOutput, index: int, request: SamplingParams) -> LogprobsAtPosition:
    """The likeliest tokens of a finished request; the one that it drew may be none of them."""
    (completion,) = output.outputs
    if output.error is not None or not completion.logprobs:
        why = output.error or f"a step ended by {completion.finish_reason!r}"
        raise StepError(f"beam search after prompts[{index}] failed: {why}") from output.cause
    (entries,) = completion.logprobs
    most = request.logprobs or 0
    return {token_id: e for token_id, e in entries.items() if e.rank is None or e.rank <= most}


def _continuations(
    beam: Beam, likeliest: LogprobsAtPosition, ends: frozenset[int]
) -> Iterator[Beam]:
    """A beam with each of the likeliest tokens behind it that the model can write at all."""
    for token_id, entry in likeliest.items():
        if entry.logprob != -math.inf:
            yield Beam(
                tokens=(*beam.tokens, token_id),
                logprobs=(*beam.logprobs, likeliest),
                cum_logprob=beam.cum_logprob + entry.logprob,
                has_ended=token_id in ends,
            )


def _output(
    prompt: Prompt,
    best: Sequence[ScoredBeam],
    tokenizer: Tokenizer | None,
    params: BeamSearchParams,
) -> BeamSearchOutput:
    return BeamSearchOutput(
        sequences=[_sequence(prompt, each, tokenizer, params) for each in best],
        prompt_token_ids=prompt.token_ids,
    )


def _sequence(
    prompt: Prompt, scored: ScoredBeam, tokenizer: Tokenizer | None, params: BeamSearchParams
) -> BeamSearchSequence:
    beam = scored.beam
    tokens = [*prompt.token_ids, *beam.tokens]
    text = None
    if tokenizer is not None:
        is_cut = beam.has_ended and not params.include_stop_str_in_output
        text = tokenizer.decode(tokens[:-1] if is_cut else tokens, skip_special_tokens=False)
    return BeamSearchSequence(
        tokens=tokens,
        logprobs=list(beam.logprobs),
        cum_logprob=beam.cum_logprob,
        text=text,
        finish_reason="stop" if beam.has_ended else "length",
        score=scored.score,
    )

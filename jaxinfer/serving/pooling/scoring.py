"""Scores given texts, as prompts that run without sampling."""

from typing import Any

from jaxinfer.errors import StepError
from jaxinfer.outputs import RequestOutput, ScoreOutput
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.prompts import PromptReader


def read_score_inputs(inputs: Any, reader: PromptReader) -> tuple[list[Prompt], list[int]]:
    """Check the inputs of `score`.

    Args:
        inputs: prompts as `PromptReader.read` takes them, a tuple (context, continuation), or a
            list of such tuples.
        reader: checks token ids and lengths.

    Returns:
        Prompts, and for each the index of its first token that counts.

    Raises:
        TypeError, ValueError: as `PromptReader.read`, naming the index.
    """
    if _is_pair(inputs):
        pairs = [inputs]
    elif isinstance(inputs, (list, tuple)) and any(_is_pair(item) for item in inputs):
        pairs = list(inputs)
    else:
        prompts = reader.read(inputs, num_outputs=0)
        return prompts, [1] * len(prompts)
    for i, pair in enumerate(pairs):
        if not _is_pair(pair):
            raise TypeError(f"inputs[{i}] must be a tuple (context, continuation), as others are")
    read = [_read_pair(f"inputs[{i}]", pair[0], pair[1], reader) for i, pair in enumerate(pairs)]
    return [prompt for prompt, _ in read], [start for _, start in read]


def score_output(output: RequestOutput, start: int) -> ScoreOutput:
    """The scores in a finished request that asked for prompt log-probabilities.

    Raises:
        StepError: the request failed.
    """
    if output.error is not None or output.prompt_logprobs is None:
        raise StepError(f"scoring failed: {output.error}") from output.cause
    token_logprobs: list[float | None] = [None]
    ranks: list[int | None] = [None]
    following = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    for token_id, entries in following:
        if entries is None:
            raise StepError("scoring failed: a token was not scored")
        token_logprobs.append(entries[token_id].logprob)
        ranks.append(entries[token_id].rank)
    return ScoreOutput(output.prompt_token_ids, token_logprobs, ranks, start)


def _is_pair(item: Any) -> bool:
    """A tuple of two texts or two lists; (1, 2) is a prompt of two token ids."""
    return (
        isinstance(item, tuple)
        and len(item) == 2
        and all(isinstance(part, (str, list, tuple)) for part in item)
    )


def _read_pair(
    name: str, context: Any, continuation: Any, reader: PromptReader
) -> tuple[Prompt, int]:
    if isinstance(context, str) != isinstance(continuation, str):
        raise TypeError(f"{name}: context and continuation must both be text or both token ids")
    if len(context) == 0:
        raise ValueError(f"{name}: the context is empty; the first token has no log-probability")
    if len(continuation) == 0:
        raise ValueError(f"{name}: the continuation is empty; there is nothing to score")
    if not isinstance(context, str):
        return reader.check_token_ids(name, [*context, *continuation], num_outputs=0), len(context)
    # Tokens may join over the border: the continuation begins where the two tokenizations part.
    text = context + continuation
    tokenizer = reader.check_text(name, text, num_outputs=0)
    token_ids = tokenizer.encode(text)
    prompt = reader.check_token_ids(name, token_ids, num_outputs=0, text=text)
    start = 0
    for ours, theirs in zip(tokenizer.encode(context), token_ids, strict=False):
        if ours != theirs:
            break
        start += 1
    if start == 0:
        raise ValueError(f"{name}: context and continuation begin with one token; add context")
    return prompt, start

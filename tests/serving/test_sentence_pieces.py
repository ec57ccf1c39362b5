"""An engine with a SentencePiece-like tokenizer: its text goes on from the prompt's."""

import pytest

from jaxinfer import SamplingParams
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.model.text.small_sentence_pieces import FORMS, build_pieces
from tests.serving.small_llm import CONFIG, small_llm

FIRST_PIECE = 3 + 256


@pytest.mark.parametrize("form", FORMS)
def test_texts_streams_and_stops_go_on_from_the_prompt(form):
    tokenizer = Tokenizer(build_pieces(form))
    spaced = [
        i
        for i in range(FIRST_PIECE, min(tokenizer.vocab_size, CONFIG.vocab_size))
        if tokenizer.token_bytes(i)[:1] == b" " and len(tokenizer.token_bytes(i)) > 1
    ]
    options = {"temperature": 0.0, "max_tokens": 4, "allowed_token_ids": spaced}
    only_special = [tokenizer.token_to_id("<s>")]
    prompt = tokenizer.encode("a")
    with small_llm(tokenizer=tokenizer) as llm:
        for token_ids in (prompt, only_special):
            (output,) = llm.generate([token_ids], SamplingParams(**options), use_tqdm=False)
            (answer,) = output.outputs
            whole = tokenizer.decode([*token_ids, *answer.token_ids])
            assert tokenizer.decode(token_ids) + answer.text == whole
            assert answer.text.startswith(" ") == (token_ids is prompt or form == "gemma")
            stop = answer.text[:4].lstrip() or answer.text[:2]
            stopped = SamplingParams(**options, stop=[stop])
            (output,) = llm.generate([token_ids], stopped, use_tqdm=False)
            assert output.outputs[0].text == answer.text.partition(stop)[0]

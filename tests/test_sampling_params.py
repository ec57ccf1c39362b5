"""SamplingParams: legal values are kept, everything else names its field."""

import pickle

import numpy as np
import pytest

from jaxinfer.sampling_fields import MAX_LOGIT_BIAS, MAX_N
from jaxinfer.sampling_params import SamplingParams

INTEGERS = {
    "n": {MAX_N},
    "top_k": {-1, 0},
    "min_tokens": {0},
    "max_tokens": {None},
    "logprobs": {-1, 0, None},
    "prompt_logprobs": {-1, 0, None},
    "seed": {-1, 0, None},
}
REALS = {
    "temperature": {0},
    "top_p": set(),
    "min_p": {0},
    "repetition_penalty": set(),
    "presence_penalty": {-1, 0},
    "frequency_penalty": {-1, 0},
}
MAXIMUM = {
    "n": 1024,
    "top_k": 2**31 - 1,
    "min_tokens": 2**31 - 1,
    "max_tokens": 2**31 - 1,
    "logprobs": 2**31 - 1,
    "prompt_logprobs": 2**31 - 1,
    "seed": 2**63 - 1,
    "temperature": 100,
    "top_p": 1,
    "min_p": 1,
    "repetition_penalty": 100,
    "presence_penalty": 2,
    "frequency_penalty": 2,
}
HOSTILE = [
    -1,
    0,
    "max+1",
    2**63,
    10**400,
    10**5000,
    float("nan"),
    float("inf"),
    True,
    "1",
    None,
    [],
    {},
]


def is_legal(name: str, value: object) -> bool:
    if value is True and name.endswith("logprobs"):
        return True  # as in vLLM
    if isinstance(value, bool | list | dict | str):
        return False
    return value in (INTEGERS | REALS)[name]


@pytest.mark.parametrize(
    "value", HOSTILE, ids=lambda value: f"{value!s:.9}" if value != 10**5000 else "huge"
)
@pytest.mark.parametrize("name", INTEGERS | REALS)
def test_numeric_field_is_legal_or_an_error_that_names_it(name: str, value: object) -> None:
    if value == "max+1":
        value = MAXIMUM[name] + 1
    if is_legal(name, value):
        stored = getattr(SamplingParams(**{name: value}), name)
        assert stored == (None if name == "seed" and value == -1 else value)
    else:
        with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
            SamplingParams(**{name: value})


@pytest.mark.parametrize("name", INTEGERS | REALS)
def test_maximum_is_legal(name: str) -> None:
    extra = {"max_tokens": None} if name == "min_tokens" else {}
    assert getattr(SamplingParams(**{name: MAXIMUM[name]}, **extra), name) == MAXIMUM[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", 3),
        ("stop", [3]),
        ("stop", [""]),
        ("stop", ["x"] * 65),
        ("stop", "x" * 1025),
        ("stop", {"a": 1}),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["1"]),
        ("stop_token_ids", "12"),
        ("stop_token_ids", 5),
        ("stop_token_ids", list(range(65))),
        ("bad_words", "word"),
        ("bad_words", [""]),
        ("bad_words", ["x"] * 129),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [2**31]),
        ("allowed_token_ids", [1.0]),
        ("logit_bias", [1]),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: True}),
        ("logit_bias", {"x": 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)),
        ("ignore_eos", 1),
        ("detokenize", "yes"),
        ("skip_special_tokens", None),
        ("include_stop_str_in_output", 0),
    ],
)
def test_other_bad_field_is_an_error_that_names_it(name: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=name):
        SamplingParams(**{name: value})


def test_contradictions_are_errors() -> None:
    with pytest.raises(ValueError, match=r"min_tokens.*max_tokens"):
        SamplingParams(min_tokens=17)
    with pytest.raises(ValueError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_error_messages_are_bounded() -> None:
    with pytest.raises(TypeError) as caught:
        SamplingParams(temperature="x" * 10**6)  # pyright: ignore[reportArgumentType]
    assert len(str(caught.value)) < 200


def test_unknown_field_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="top_q"):
        SamplingParams(top_q=1)  # pyright: ignore[reportCallIssue]


def test_values_are_stored_in_plain_types() -> None:
    params = SamplingParams(
        n=np.int64(2),
        temperature=1,
        top_k=np.int32(5),
        top_p=np.float32(0.5),
        stop="end",
        stop_token_ids=[3, np.int64(4)],
        logit_bias={"7": 1, 8: -2.5},
    )
    assert (params.n, type(params.n)) == (2, int)
    assert type(params.temperature) is float
    assert type(params.top_k) is int
    assert type(params.top_p) is float
    assert params.stop == ("end",)
    assert params.stop_token_ids == (3, 4)
    assert params.logit_bias == {7: 1.0, 8: -2.5}


def test_fields_are_assigned_in_their_plain_type() -> None:
    params = SamplingParams()
    params.max_tokens = np.int64(100)
    params.stop = "end"
    assert (params.max_tokens, params.stop) == (100, ("end",))
    assert type(params.max_tokens) is int
    assert params == SamplingParams(max_tokens=100, stop=["end"])


@pytest.mark.parametrize(
    ("name", "value", "kind", "text"),
    [
        ("temperature", 999, ValueError, "temperature"),
        ("n", True, TypeError, "n must be an integer"),
        ("min_tokens", 17, ValueError, r"min_tokens \(17\) must not exceed max_tokens \(16\)"),
        ("max_token", 5, AttributeError, "no field 'max_token'; did you mean 'max_tokens'"),
        ("zebra", 5, AttributeError, r"no field 'zebra'; docs/from-vllm\.md"),
    ],
)
def test_a_refused_assignment_changes_nothing(name, value, kind, text) -> None:
    params = SamplingParams(temperature=0.5)
    with pytest.raises(kind, match=text):
        setattr(params, name, value)
    assert params == SamplingParams(temperature=0.5)


def test_fields_are_not_deleted() -> None:
    params = SamplingParams(n=2)
    with pytest.raises(AttributeError, match="n can't be deleted"):
        del params.n
    assert params.n == 2


def test_params_are_hashable_and_picklable() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, stop=["a"])
    assert hash(params) == hash(params.clone())
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_token", "did you mean 'max_tokens'"),
        ("best_of", "write n and take the best"),
        ("zebra", r"docs/from-vllm\.md"),
    ],
)
def test_an_unknown_field_is_named_with_what_to_write_instead(name, text) -> None:
    with pytest.raises(TypeError, match=f"no field '{name}'.*{text}"):
        SamplingParams(**{name: 1})


def test_only_n_is_positional() -> None:
    assert SamplingParams(3).n == 3
    with pytest.raises(TypeError):
        SamplingParams(1, 0.5)  # pyright: ignore[reportCallIssue]


def test_clone_replaces_and_checks() -> None:
    params = SamplingParams(temperature=0.5, top_k=3)
    changed = params.clone(top_k=4)
    assert (changed.temperature, changed.top_k, params.top_k) == (0.5, 4, 3)
    for wrong in (2.0, 0.0, float("nan")):
        with pytest.raises(ValueError, match=f"top_p must be above 0 and at most 1, got {wrong}"):
            params.clone(top_p=wrong)


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": 9e-6, "top_k": 5, "top_p": 0.5}, "temperature"),
        ({}, "temperature"),
        ({"min_p": 0.1, "logprobs": 0}, "temperature"),
        ({"top_k": 5}, "truncate"),
        ({"top_p": 0.9, "top_k": -1}, "truncate"),
        ({"logprobs": 1}, "full"),
        ({"logprobs": -1}, "full"),
        ({"temperature": 0.0, "logprobs": 0}, "full"),
        ({"repetition_penalty": 1.1}, "full"),
        ({"presence_penalty": -0.1}, "full"),
        ({"frequency_penalty": 0.1}, "full"),
        ({"logit_bias": {1: 1.0}}, "full"),
        ({"allowed_token_ids": [1]}, "full"),
        ({"bad_words": ["x"]}, "full"),
        ({"min_tokens": 1}, "full"),
        ({"logit_bias": {}, "prompt_logprobs": 5, "stop": "x"}, "temperature"),
    ],
)
def test_mode_is_the_cheapest_that_serves(fields: dict, mode: str) -> None:
    assert SamplingParams(**fields).sampling_mode() == mode


@pytest.mark.parametrize(
    "fields",
    [{"stop_token_ids": [9, 10]}, {"allowed_token_ids": [10]}, {"logit_bias": {10: 0.0}}],
    ids=lambda fields: next(iter(fields)),
)
def test_token_ids_are_checked_against_the_vocabulary(fields: dict) -> None:
    params = SamplingParams(**fields)
    params.validate_for_vocab(11)
    with pytest.raises(ValueError, match=rf"{next(iter(fields))}.*10.*9"):
        params.validate_for_vocab(10)


def test_generation_config_gives_defaults_and_the_caller_wins() -> None:
    config = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": 5}
    params = SamplingParams.from_generation_config(config, top_k=7)
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 7, 1.0)
    assert SamplingParams.from_generation_config(config | {"do_sample": False}).is_greedy
    with pytest.raises(ValueError, match="max_tokens"):
        SamplingParams.from_generation_config({"max_new_tokens": 0})


def test_a_clone_is_independent() -> None:
    for params in (SamplingParams(n=2), SamplingParams(logit_bias={1: 2.0})):
        clone = params.clone()
        assert clone == params
        clone.temperature = 0.25
        if clone.logit_bias is not None:
            clone.logit_bias[1] = 3.0  # type: ignore[index]
        assert params.temperature == 1.0
        assert params.logit_bias in (None, {1: 2.0})

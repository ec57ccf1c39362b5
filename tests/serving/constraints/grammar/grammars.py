"""The bundled model's tokenizer, its grammars, and a sampler that knows only their masks."""

import functools
import importlib.resources
import random

import numpy as np

import jaxinfer
from jaxinfer import StructuredOutputsParams
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.constraints.grammar.compiler import GrammarCompiler
from jaxinfer.serving.constraints.request_constraints import RequestConstraints
from jaxinfer.serving.slots.step_masks import MaskBuffer

SCHEMAS = [
    {"type": "integer", "minimum": 3, "maximum": 4000},
    {"type": "string", "pattern": "^[a-c]{2,5}-[0-9]+$", "maxLength": 12},
    {"enum": ["red", "green", 3, None, {"a": [1]}]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    {"const": {"x": "y"}},
    {"anyOf": [{"type": "null"}, {"type": "number", "exclusiveMinimum": 0, "maximum": 10}]},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "minimum": 0, "maximum": 9},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    {"type": "string", "format": "date"},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}], "items": False},
    {"enum": [1, 2, 3], "minimum": 2},
    {"type": ["string", "integer"], "maxLength": 2, "minimum": 5, "maximum": 9},
    {"allOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer", "maximum": 40},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 4},
    {"allOf": [{"pattern": "^a"}, {"pattern": "b$"}], "type": "string", "maxLength": 5},
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "minimum": -3}]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
    {
        "type": "object",
        "patternProperties": {"^a[a-c]?$": {"type": "null"}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "ipv4"},
    {
        "type": "array",
        "prefixItems": [{"type": "null"}],
        "minItems": 2,
        "maxItems": 3,
        "items": {"type": "boolean"},
    },
]
"""Ends are near in each: a uniformly random sampler comes to them."""


@functools.cache
def bundled_tokenizer() -> Tokenizer:
    return Tokenizer.from_directory(str(importlib.resources.files(jaxinfer) / "assets" / "model"))


def compiler(**options) -> GrammarCompiler:
    tokenizer = bundled_tokenizer()
    return GrammarCompiler(tokenizer, vocab_size(), tokenizer.eos_token_ids, **options)


def constraints(grammars: GrammarCompiler | None = None) -> RequestConstraints:
    """Those of the bundled model, with a compiler that is shared by default."""
    tokenizer = bundled_tokenizer()
    grammars = grammars or shared_compiler()
    return RequestConstraints(tokenizer, vocab_size(), tokenizer.eos_token_ids, grammars=grammars)


def vocab_size() -> int:
    """Wider than the tokenizer, as models are."""
    return bundled_tokenizer().vocab_size + 40


@functools.cache
def shared_compiler() -> GrammarCompiler:
    return compiler()


def matcher(**given):
    return shared_compiler().get(StructuredOutputsParams(**given)).matcher()


def allowed_ids(matcher) -> np.ndarray:
    """Ids that the packed mask allows."""
    allowed = MaskBuffer().fill([matcher])[0]
    matcher.finish_mask(allowed)
    return np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little"))


def random_answer(matcher, seed: int, most: int = 400) -> list[int] | None:
    """Tokens drawn uniformly under the masks, without the one that ends; None if none does."""
    draw, tokens = random.Random(seed), []
    ends = set(bundled_tokenizer().eos_token_ids)
    while len(tokens) < most:
        token = int(draw.choice(allowed_ids(matcher)))
        if token in ends:
            return tokens
        tokens.append(token)
        matcher.follow(tokens)
    return None

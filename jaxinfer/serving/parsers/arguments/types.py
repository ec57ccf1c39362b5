"""Derives the types of arguments from a tool's JSON schema, for parser and grammar."""

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_NAMES = {
    "string": ("string", "str", "text"),
    "integer": ("integer", "int", "long", "short", "uint", "unsigned", "int32", "int64"),
    "number": ("number", "num", "float", "double", "decimal"),
    "boolean": ("boolean", "bool"),
    "null": ("null", "none", "nonetype"),
    "array": ("array", "list", "tuple", "set"),
    "object": ("object", "dict", "map"),
}
TYPE_NAMES: Mapping[str, str] = {each: kind for kind, names in _NAMES.items() for each in names}
"""JSON's types, by their names and by those of other languages that tools have; lower case."""

_IMPLIED = {
    "object": ("properties", "additionalProperties", "patternProperties", "required"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Types that a schema without `type` implies by its keywords."""

_MOST_DEPTH = 32


@dataclass(frozen=True)
class ArgumentType:
    """The types and values that a schema allows.

    Attributes:
        kinds: names of JSON's types, "integer" beside "number"; None if the schema names none.
        choices: the only allowed values; None for any of the types.
        bounds_numbers: whether some numbers may be excluded.
    """

    kinds: frozenset[str] | None = None
    choices: tuple[Any, ...] | None = None
    bounds_numbers: bool = False

    @property
    def is_text(self) -> bool:
        """True if a written value is always text; also without any types."""
        return self.kinds is None or self.kinds == {"string"}

    @property
    def is_text_or_null(self) -> bool:
        """True if every value but null is text."""
        return self.kinds == {"string", "null"}


ANY = ArgumentType()


class FunctionSchema:
    """The parameters of one function.

    Args:
        parameters: a JSON schema; anything else allows all arguments.

    Attributes:
        required: names, in order.
        additional: the schema of other arguments.
        wholes: the schemas that all arguments together must follow.
    """

    def __init__(self, parameters: Any) -> None:
        self.root = _mapping(parameters)
        self._types: dict[str, ArgumentType] = {}
        self._by_pointer: dict[str, ArgumentType] = {}
        self.properties: dict[str, Any] = {}
        self.required: dict[Any, None] = {}
        self.additional: Any = True
        self.wholes: list[Mapping[str, Any]] = []
        for part, join in self._parts():
            for name, declared in _mapping(part.get("properties")).items():
                known = self.properties.get(name, declared)
                self.properties[name] = known if known == declared else {join: [known, declared]}
            if join == "anyOf":
                continue
            self.wholes.append(part)
            self.required |= {
                each: None for each in _list(part.get("required")) if isinstance(each, str)
            }
            self.additional = part.get("additionalProperties", self.additional)

    def declares(self, argument: str) -> bool:
        """True if an argument is a property, or no properties are declared at all."""
        return not self.properties or argument in self.properties

    def type_of(self, argument: str) -> ArgumentType:
        """The type of an argument's value."""
        if argument not in self._types:
            declared = self.properties.get(argument, self.additional)
            self._types[argument] = self.type_of_schema(declared)
        return self._types[argument]

    def type_of_schema(self, declared: Any) -> ArgumentType:
        """The type of a value of a schema that is part of this one."""
        return self._type(declared, 0)

    def resolve(self, pointer: Any) -> Any:
        """The part of the schema that a `$ref` names; None where it is none, or elsewhere."""
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            return None
        part: Any = self.root
        for step in urllib.parse.unquote(pointer).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, list) and step.isdecimal() and int(step) < len(part):
                part = part[int(step)]
            else:
                part = _mapping(part).get(step)
        return part

    def _parts(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        """The schemas that apply to all arguments together, each with the keyword that joins it."""
        to_visit, seen = [(self.root, "allOf")], set[int]()
        while to_visit:
            part, join = to_visit.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            yield part, join
            found = [(self.resolve(part.get("$ref")), join)]
            found += [(each, join) for each in _list(part.get("allOf"))]
            found += [(each, "anyOf") for each in _list(part.get("anyOf"))]
            found += [(each, "anyOf") for each in _list(part.get("oneOf"))]
            to_visit += reversed([each for each in found if isinstance(each[0], Mapping)])

    def _type(self, schema: Any, depth: int) -> ArgumentType:
        if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
            return ANY
        said = []
        if (names := schema.get("type")) is not None:
            said.append(_by_names(names))
        if isinstance(schema.get("enum"), list):
            said.append(_by_values(schema["enum"]))
        if "const" in schema:
            said.append(_by_values([schema["const"]]))
        if "$ref" in schema:
            said.append(self._referred(schema["$ref"], depth))
        said += [self._type(each, depth + 1) for each in _list(schema.get("allOf"))]
        for keyword in ("anyOf", "oneOf"):
            if cases := _list(schema.get(keyword)):
                said.append(_either([self._type(each, depth + 1) for each in cases]))
        found = _both(said)
        if found.kinds is None:
            found = _implied(schema)
        if schema.get("nullable") is True and found.kinds is not None:
            found = _either([found, _by_values([None])])
        is_bounded = any(keyword in schema for keyword in _IMPLIED["number"])
        is_bounded |= any(each.bounds_numbers or each.choices for each in said)
        return replace(found, bounds_numbers=is_bounded)

    def _referred(self, pointer: Any, depth: int) -> ArgumentType:
        key = str(pointer)
        if key not in self._by_pointer:
            self._by_pointer[key] = ANY  # while it is being resolved: a cycle
            self._by_pointer[key] = self._type(self.resolve(pointer), depth + 1)
        return self._by_pointer[key]


class ArgumentTypes:
    """The schemas of a request's tools, by function.

    Args:
        tools: as in a request: `function` has `name` and perhaps `parameters`, a JSON schema.
            Anything else counts as a schema without restrictions.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [_mapping(tool.get("function")) for tool in tools]
        self._parameters = {each.get("name"): each.get("parameters") for each in functions}
        self._schemas: dict[str, FunctionSchema] = {}

    def of(self, function: str) -> FunctionSchema:
        """The schema of a function's parameters; without restrictions for an unknown function."""
        if function not in self._schemas:
            self._schemas[function] = FunctionSchema(self._parameters.get(function))
        return self._schemas[function]


def kinds_of(value: Any) -> frozenset[str]:
    """The JSON types of a Python value."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case str():
            return frozenset({"string"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _by_names(names: Any) -> ArgumentType:
    given = names if isinstance(names, list) else [names]
    kinds = {TYPE_NAMES.get(each.lower()) for each in given if isinstance(each, str)} - {None}
    if not kinds:
        return ANY
    return ArgumentType(
        frozenset(filter(None, kinds | ({"integer"} if "number" in kinds else set())))
    )


def _by_values(values: Sequence[Any]) -> ArgumentType:
    kinds = frozenset[str]().union(*map(kinds_of, values))
    return ArgumentType(kinds or None, tuple(values) or None)


def _implied(schema: Mapping[str, Any]) -> ArgumentType:
    kinds = [
        kind for kind, keywords in _IMPLIED.items() if any(each in schema for each in keywords)
    ]
    return _by_names(kinds) if kinds else ANY


def _both(types: Sequence[ArgumentType]) -> ArgumentType:
    """The intersection of types; an empty one counts as no restriction."""
    kinds: frozenset[str] | None = None
    choices: tuple[Any, ...] | None = None
    for each in types:
        if each.kinds is not None:
            kinds = each.kinds if kinds is None else kinds & each.kinds
        if each.choices is not None:
            others = each.choices
            choices = others if choices is None else tuple(c for c in choices if c in others)
    if choices is not None:
        choices = tuple(each for each in choices if kinds is None or kinds_of(each) & kinds)
        kinds = frozenset[str]().union(*map(kinds_of, choices))
    return ArgumentType(kinds or None, choices or None)


def _either(types: Sequence[ArgumentType]) -> ArgumentType:
    if any(each.kinds is None for each in types):
        return ANY
    kinds = frozenset[str]().union(*(each.kinds or () for each in types))
    if any(each.choices is None for each in types):
        is_bounded = any(each.bounds_numbers or each.choices for each in types)
        return ArgumentType(kinds, bounds_numbers=is_bounded)
    return ArgumentType(kinds, tuple(c for each in types for c in each.choices or ()))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()

"""Schemas that a finite text can meet, and those that ask for themselves."""

import pytest

from runtime.sampling.schema_ends import schema_can_end

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


def having(node, **more):
    return {"$ref": "#/$defs/node", "$defs": {"node": {**node, **more}}}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "string"},
        having(NODE),
        having({"type": "array", "items": {"$ref": "#/$defs/node"}}),
        having({"anyOf": [{"type": "null"}, {**NODE, "required": ["next"]}]}),
        having(
            {"type": ["object", "null"], **{k: NODE[k] for k in ("properties",)}}, required=["next"]
        ),
        having(
            {"type": "array", "prefixItems": [{}], "items": {"$ref": "#/$defs/node"}}, minItems=1
        ),
        {"enum": [1], "$ref": "#"},
        {"$ref": "https://elsewhere"},
        {"type": "object", "properties": {"a": {}}, "required": ["a", "b"]},
    ],
)
def test_it_can_end(schema):
    assert schema_can_end(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        having(NODE, required=["next"]),
        having({"type": "array", "items": {"$ref": "#/$defs/node"}}, minItems=2),
        having({"type": "array", "prefixItems": [{"$ref": "#/$defs/node"}]}, minItems=1),
        having({"allOf": [{"type": "object"}, {**NODE, "required": ["next"]}]}),
        having({"anyOf": [{**NODE, "required": ["next"]}, {"$ref": "#/$defs/node"}]}),
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
    ],
)
def test_it_asks_for_itself(schema):
    assert not schema_can_end(schema)

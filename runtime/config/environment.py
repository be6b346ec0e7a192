"""Keys from environment variables: `STEPGRAPH_` and the key in capitals, `__` between its parts.

`STEPGRAPH_SCHEDULER__MAX_NUM_SEQS=8`. A variable is always text, so its key says how to read it: a
boolean may be 0 or 1, true or false, yes or no, on or off; all else is YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_type_hints

from runtime.config.describe import allowed_values, annotation_of, base_kinds, leaf_keys
from runtime.config.problems import Key, error_of_lines
from runtime.config.provenance import Origin
from runtime.config.schema import RunConfig
from runtime.config.yaml_file import parse_value
from runtime.data.params import SamplingParams

PREFIX = "STEPGRAPH_"
SPECIALS = frozenset({"STEPGRAPH_CACHE_DIR"})
"""Read elsewhere, no keys: the folder of converted weights and compiled kernels."""
TEST_PREFIX = "STEPGRAPH_TEST_"
"""Of variables that only tests read."""
WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
DIGITS = {"1": True, "0": False}

Setting = tuple[Key, Any, Origin]


def environment_name(key: Key) -> str:
    """`STEPGRAPH_SCHEDULER__MAX_NUM_SEQS`"""
    return PREFIX + "__".join(str(part) for part in key).upper()


def from_environment(env: Mapping[str, str]) -> Iterator[Setting]:
    """Each variable that names a key, with its value.

    Raises:
        ConfigError: of all unknown names and empty values at once; or a value is no YAML.
    """
    known = {environment_name(key): key for key in leaf_keys(RunConfig)}
    sampling = environment_name(("sampling", ""))
    wrong = []
    for name in sorted(env):
        if not name.startswith(PREFIX) or name in SPECIALS or name.startswith(TEST_PREFIX):
            continue
        if name in known:
            key: Key = known[name]
        elif name.startswith(sampling):
            key = ("sampling", name.removeprefix(sampling).lower())
        else:
            wrong.append(f"{name}: unknown variable; {_near_variable(name, list(known))}")
            continue
        annotation = _annotation(key)
        if not env[name].strip():
            allowed = (
                f"give it {allowed_values(annotation)}, or" if annotation else "give a value, or"
            )
            wrong.append(f"{name}: is empty; {allowed} unset it")
            continue
        yield key, _value(env[name], key, annotation, name), Origin("environment", name)
    if wrong:
        raise error_of_lines(wrong)


def _annotation(key: Key) -> Any:
    if key[0] == "sampling" and len(key) == 2:
        return get_type_hints(SamplingParams).get(str(key[1]))
    return annotation_of(RunConfig, key)


def _value(text: str, key: Key, annotation: Any, name: str) -> Any:
    """The variable's text as its key means it."""
    kinds = base_kinds(annotation)
    word = text.strip().lower()
    if bool in kinds:
        words = WORDS if str in kinds or int in kinds else WORDS | DIGITS
        if word in words:
            return words[word]
    value = parse_value(text, name, key)
    is_text = str in kinds and kinds <= {str, type(None)}
    return text if is_text and value is not None and not isinstance(value, str) else value


def _near_variable(name: str, known: list[str]) -> str:
    end = name.removeprefix(PREFIX)  # the prefix is no likeness
    ends = [k.removeprefix(PREFIX) for k in (*known, *sorted(SPECIALS))]
    near = [e for e in ends if e.endswith(f"__{end}")] or get_close_matches(end, ends, n=1)
    if near:
        return f"did you mean {PREFIX}{near[0]}?"
    return f"names are {PREFIX}SECTION__KEY, such as {environment_name(('model', 'path'))}"

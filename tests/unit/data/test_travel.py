"""Errors and plain data survive pickle and deepcopy: processes and futures carry them.

The classes are found, not listed: a new one is tested by existing.
"""

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil

import pytest

import attention_backends
import graphs
import runtime
from runtime import RuntimeConfig, SamplingParams, StructuredOutput
from runtime.config.problems import Problem, ProblemsError
from runtime.server.errors import ApiError

GIVEN = {
    ProblemsError: {"problems": (Problem(("cache", 0), "too small"),)},
    ApiError: {"status": 400, "message": "wrong", "param": "n", "headers": {"Retry-After": "1"}},
    SamplingParams: {"stop": ["a"], "logit_bias": {1: 2.0}, "structured_output": {"regex": "a+"}},
    StructuredOutput: {"json": {"type": "object"}},
}


def classes(package):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(found.name)
        except ImportError:  # a kernel library that is not installed
            continue
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__:
                yield kind


def is_public_data(kind):
    is_data = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    in_room = kind.__module__.startswith(("runtime.data.", "runtime.observe."))
    return is_data and in_room and not kind.__name__.startswith("_")


EVERY = [c for p in (runtime, graphs, attention_backends) for c in classes(p)]
ERRORS = [c for c in EVERY if issubclass(c, Exception)]
DATA = [c for c in EVERY if is_public_data(c)]


def made(kind):
    """One of a kind, each argument that it insists on a text or a list of its name."""
    if kind in GIVEN:
        return kind(**GIVEN[kind])
    if issubclass(kind, Exception):
        own = inspect.isfunction(kind.__init__)
        return kind(*list(inspect.signature(kind).parameters) if own else ["what is wrong"])
    wanted = inspect.signature(kind).parameters.values()
    return kind(**{p.name: [p.name] for p in wanted if p.default is p.empty})


def told(value):
    state = getattr(value, "__dict__", {})
    return type(value), repr(value), str(value), {k: repr(v) for k, v in state.items()}


def test_the_search_finds_what_is_known():
    names = {c.__name__ for c in [*ERRORS, *DATA]}
    assert names > {"RequestError", "GraphError", "BackendChoiceError", "Result", "Delta", "NewRow"}


@pytest.mark.parametrize("kind", [*ERRORS, *DATA], ids=lambda c: c.__name__)
@pytest.mark.parametrize("travel", [lambda v: pickle.loads(pickle.dumps(v)), copy.deepcopy])
def test_what_arrives_is_what_left(kind, travel):
    sent = made(kind)
    assert told(travel(sent)) == told(sent)


def test_a_request_error_of_an_item_travels_too():
    sent = runtime.RequestError("stop", "must be text").of_item(2, 4)
    got = pickle.loads(pickle.dumps(sent))
    assert (got.field, str(got)) == ("stop", str(sent))


def test_a_configuration_travels():
    sent = RuntimeConfig(model={"path": "x"}, cache={"memory": "1GiB"})
    assert pickle.loads(pickle.dumps(sent)) == copy.deepcopy(sent) == sent

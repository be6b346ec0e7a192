"""Kernel libraries: imported once, held against the calls that we make, refused with a reason.

An installed library may still fail to load (built for another torch, a missing shared object), or
be of a release that takes other arguments. Both are found out while backends are compared.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from operator import attrgetter
from typing import Any, NamedTuple

log = logging.getLogger(__name__)


class Call(NamedTuple):
    """A function that we call."""

    function: str
    """dotted name in the module"""
    keywords: tuple[str, ...]
    """names of all arguments that we pass, `self` of a method included"""


class Library(NamedTuple):
    """What a backend takes from a kernel library."""

    module: str
    distributions: tuple[str, ...]
    """that may have brought it, for its version"""
    needed: str
    """the release that has it all, for messages"""
    calls: tuple[Call, ...]


class Opened(NamedTuple):
    module: Any
    """None where there is a reason"""
    reason: str
    """why it cannot be used; "" where it can"""


@cache
def open_library(library: Library) -> Opened:
    """Import an installed library and check that it takes our calls; once per process, because a
    failed import is slow and may leave operators registered that a second one trips over."""
    try:
        module = importlib.import_module(library.module)
    except Exception as error:  # whatever its initialisation raises; others may serve
        log.debug("%s cannot be loaded", library.module, exc_info=True)
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return Opened(None, f"{_name(library)} is installed but cannot be loaded: {what}")
    for call in library.calls:
        if reason := _refuse_call(module, call):
            return Opened(None, f"{_name(library)} {reason}; {library.needed} is needed")
    return Opened(module, "")


def version_of(distributions: Sequence[str]) -> str:
    """Of the first that is installed; "" where none says (built in place)."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def misfit(function: Callable[..., object], keywords: Sequence[str]) -> str:
    """Why the function cannot be called with these keywords; "" where it can."""
    try:
        inspect.signature(function).bind(**dict.fromkeys(keywords))
    except (TypeError, ValueError) as error:  # ValueError: it does not tell its signature
        return str(error)
    return ""


def _refuse_call(module: Any, call: Call) -> str:
    try:
        function = attrgetter(call.function)(module)
    except AttributeError:
        return f"has no {call.function}"
    if reason := misfit(function, call.keywords):
        return f"does not take our call of {call.function} ({reason})"
    return ""


def _name(library: Library) -> str:
    """Of the distribution, and its version."""
    for name in library.distributions:
        if version := version_of([name]):
            return f"{name} {version}"
    return library.module

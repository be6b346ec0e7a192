"""Which tests belong to what changed: for `tools/test.sh --quick`.

1. python -m tools.changed_tests            the files to run, most telling first; why goes to stderr
2. python -m tools.changed_tests A.py B.md  as if these had changed
3. python -m tools.changed_tests --json     as {"changed": [...], "chosen": {"FILE": "why"}, ...}
4. python -m tools.changed_tests --changed  of the files to run, those that changed themselves

What changed is what git tells of the working tree and, beside that, of the commits since main; on
main itself, of the last commit. Chosen are the changed tests, those that bear a changed file's name
or import it, then the others of its room, then those whose imports reach it, nearest first. Slow
tests (integration, equivalence) are chosen only where they changed themselves.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools._imports import distances, module_of

ROOT = Path(__file__).parents[1]
UNIT = "tests/unit/"
FLOORS = "tests/unit/test_floors.py"
SHARED = ("tests/conftest.py", "tests/builders.py", "pyproject.toml", "setup.py")
"""What every test may depend on."""
NATIVE_ROOMS = {
    "attention_backends/_native/": ("tests/unit/attention_backends/", "tests/unit/native/"),
    "runtime/ops/native/": ("tests/unit/ops/", "tests/unit/native/"),
}
PACKAGES = ("runtime", "graphs", "attention_backends", "tools")
MAINS = ("main", "origin/main")
LINES_OF_REASONS = 15


def changed_files(root: Path) -> list[str]:
    """Paths below `root`, those that were deleted too.

    Raises:
        OSError: git is missing.
        ValueError: the folder is no git checkout.
    """
    head = _git(root, "rev-parse", "--verify", "-q", "HEAD", check=False)
    bases = (_git(root, "merge-base", "HEAD", main, check=False) for main in MAINS)
    base = next(filter(None, bases), [])
    branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD", check=False)
    if not base or (base == head and branch in (["main"], ["HEAD"])):
        base = _git(root, "rev-parse", "--verify", "-q", "HEAD~1", check=False) or head
    names = ("diff", "--name-only", "--no-renames", "--relative", "-z")
    found = _git(root, *names, base[0]) if base else _git(root, "ls-files", "-z")
    found += _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted(set(found))


def choose(
    changed: Iterable[str], tests: Mapping[str, str], sources: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Test file -> why it is run, the most telling first.

    Args:
        tests: every test file (`tests/**/test_*.py`) and its text.
        sources: every other Python file, for what imports reach.
    """
    changed = list(changed)
    ranked: dict[str, tuple[int, str]] = {FLOORS: (1, "always")}
    far = distances(changed, {**(sources or {}), **tests})

    def add(path: str, rank: int, why: str) -> None:
        if path in tests and ranked.get(path, (99, ""))[0] > rank:
            ranked[path] = (rank, why)

    for path in changed:
        add(path, 0, "changed")
        for test in tests:
            if test.startswith(UNIT):
                rank, why = _relation(path, test, tests[test])
                if rank < 9:
                    add(test, rank, why)
    for test, (steps, path) in far.items():
        if test.startswith(UNIT):
            add(test, 3 + steps, f"its imports reach {path} at depth {steps}")
    return {path: ranked[path][1] for path in sorted(ranked, key=lambda p: (ranked[p][0], p))}


def _relation(path: str, test: str, text: str) -> tuple[int, str]:
    """(rank, why) of a unit test for a changed file; rank 9 is none."""
    stem = Path(path).stem
    if path in SHARED:
        return 3, f"all share {path}"
    if path.startswith("tests/"):
        folder = path.rpartition("/")[0] + "/"
        is_test = Path(path).name.startswith("test_")
        return (2, f"shares {path}") if test.startswith(folder) and not is_test else (9, "")
    if not path.startswith(tuple(f"{p}/" for p in PACKAGES)):
        return 9, ""
    if Path(test).stem == f"test_{stem.strip('_')}" and test.startswith(_rooms(path)):
        return 1, f"bears the name of {path}"
    if path.endswith(".py") and _imports(text, module_of(path)):
        return 1, f"imports {module_of(path)}"
    return (2, f"the room of {path}") if test.startswith(_rooms(path)) else (9, "")


def _rooms(path: str) -> tuple[str, ...]:
    """The folders of unit tests that mirror a file's room."""
    for native, rooms in NATIVE_ROOMS.items():
        if path.startswith(native):
            return rooms
    parts = path.split("/")
    if parts[0] != "runtime":
        return (f"{UNIT}{parts[0]}/",)
    return (f"{UNIT}{parts[1]}/",) if len(parts) > 2 else (f"{UNIT}test_{Path(path).stem}.py",)


def _imports(text: str, module: str) -> bool:
    package, _, name = module.rpartition(".")
    return (
        f"from {module} import" in text
        or f"import {module}\n" in text
        or (bool(package) and f"from {package} import {name}\n" in text)
    )


def _git(root: Path, *words: str, check: bool = True) -> list[str]:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode and check:
        raise ValueError((done.stderr.strip().splitlines() or ["it failed"])[0])
    separator = "\0" if "-z" in words else "\n"
    return [w for w in done.stdout.split(separator) if w] if not done.returncode else []


def _texts(folder: Path, pattern: str) -> dict[str, str]:
    found = sorted(folder.rglob(pattern))
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in found}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="what to take as changed; default: ask git")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--changed", action="store_true")
    args = parser.parse_args(argv)
    try:
        changed = args.files or changed_files(ROOT)
    except (OSError, ValueError) as error:
        print(f"--quick asks git what changed, and git says: {error}", file=sys.stderr)
        return 2
    tests = _texts(ROOT / "tests", "test_*.py")
    if args.changed:
        print("\n".join(path for path in changed if path in tests))
        return 0
    sources = {k: v for p in (*PACKAGES, "tests") for k, v in _texts(ROOT / p, "*.py").items()}
    chosen = choose(changed, tests, sources)
    if args.json:
        print(json.dumps({"changed": changed, "chosen": chosen}, indent=2))
        return 0
    for path, why in list(chosen.items())[:LINES_OF_REASONS]:
        print(f"  {path}: {why}", file=sys.stderr)
    if len(chosen) > LINES_OF_REASONS:
        more = len(chosen) - LINES_OF_REASONS
        print(f"  and {more} more that are further from what changed", file=sys.stderr)
    left = len(tests) - len(chosen)
    print(f"  {left} test files are left out; without --quick all run", file=sys.stderr)
    print("\n".join(chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())

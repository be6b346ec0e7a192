"""Which tests belong to what changed: for `tools/test.sh --quick`.

1. python -m tools.changed_tests            the files to run, most telling first; why goes to stderr
2. python -m tools.changed_tests A.py B.md  as if these had changed
3. python -m tools.changed_tests --json     as {"changed": [...], "chosen": {"FILE": "why"}, ...}

What changed is what git tells of the working tree and, beside that, of the commits since main; on a
clean main, of the last commit. Chosen are the changed tests, those that bear a changed file's name
or import it, then the others of its room. Slow tests (integration, equivalence) are chosen only
where they changed themselves.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

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


def changed_files(root: Path) -> list[str]:
    """Paths in the checkout, those that were deleted too.

    Raises:
        OSError: git is missing.
        ValueError: the folder is no git checkout.
    """
    base = _git(root, "merge-base", "HEAD", "main", check=False) or ["HEAD"]
    found = _git(root, "diff", "--name-only", base[0])
    found += _git(root, "ls-files", "--others", "--exclude-standard")
    if not found:
        found = _git(root, "diff", "--name-only", "HEAD~1", "HEAD", check=False)
    return sorted(set(found))


def choose(changed: Iterable[str], tests: Mapping[str, str]) -> dict[str, str]:
    """Test file -> why it is run, the most telling first.

    Args:
        tests: every test file (`tests/**/test_*.py`) and its text.
    """
    changed = list(changed)
    ranked: dict[str, tuple[int, str]] = {FLOORS: (1, "always")}

    def add(path: str, rank: int, why: str) -> None:
        if path in tests and ranked.get(path, (9, ""))[0] > rank:
            ranked[path] = (rank, why)

    for path in changed:
        add(path, 0, "changed")
        for test in tests:
            if test.startswith(UNIT):
                rank, why = _relation(path, test, tests[test])
                add(test, rank, why)
    return {path: ranked[path][1] for path in sorted(ranked, key=lambda p: (ranked[p][0], p))}


def _relation(path: str, test: str, text: str) -> tuple[int, str]:
    """(rank, why) of a unit test for a changed file; rank 9 is none."""
    stem = Path(path).stem
    if path in SHARED:
        return 3, f"all share {path}"
    if path.startswith("tests/"):
        folder = path.rpartition("/")[0] + "/"
        return (2, f"shares {path}") if test.startswith(folder) else (9, "")
    if not path.startswith(tuple(f"{p}/" for p in PACKAGES)):
        return 9, ""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if Path(test).stem == f"test_{stem.strip('_')}" and test.startswith(_rooms(path)):
        return 1, f"bears the name of {path}"
    if path.endswith(".py") and _imports(text, module):
        return 1, f"imports {module}"
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
        or f"import {module}" in text
        or (bool(package) and f"from {package} import {name}\n" in text)
    )


def _git(root: Path, *words: str, check: bool = True) -> list[str]:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode and check:
        raise ValueError(done.stderr.strip().splitlines()[0])
    return done.stdout.splitlines() if not done.returncode else []


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="what to take as changed; default: ask git")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    try:
        changed = args.files or changed_files(ROOT)
    except (OSError, ValueError) as error:
        print(f"--quick asks git what changed, and git says: {error}", file=sys.stderr)
        return 2
    tests = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
    }
    chosen = choose(changed, tests)
    if args.json:
        print(json.dumps({"changed": changed, "chosen": chosen}, indent=2))
        return 0
    for path, why in chosen.items():
        print(f"  {path}: {why}", file=sys.stderr)
    left = len(tests) - len(chosen)
    print(f"  {left} test files are left out; without --quick all run", file=sys.stderr)
    print("\n".join(chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Finds edit pairs for `localspec bench --pairs`: functions, classes and small modules that two releases of a
package have in common and that changed moderately.

    .venv/bin/python scripts/find_pairs.py click==8.1.7..8.2.1 attrs==22.2.0..24.2.0 --each 2 >> pairs.jsonl

The releases come from the package index through pip, as wheels that are read and never installed or run.
Only packages whose metadata names a permissive licence are taken; name, versions and licence stand in each
pair. The same arguments give the same pairs.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import re
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache)\b", re.IGNORECASE)
COPYLEFT = re.compile(r"\b[AL]?GPL|\bMPL|\bEUPL|General Public", re.IGNORECASE)
LEAST_BYTES, MOST_BYTES = 400, 5200
LEAST_ALIKE, MOST_ALIKE = 0.75, 0.99
MOST_SOURCE = 1 << 20
_SPEC = re.compile(r"([A-Za-z0-9._-]+)==([^.][^=]*?)\.\.(.+)")


@dataclass(frozen=True, slots=True)
class Releases:
    """Two releases of one package, as wheels."""

    package: str
    old: str
    new: str
    licence: str
    before: Mapping[str, str]
    after: Mapping[str, str]


def fetch(package: str, version: str, folder: Path) -> Path:
    """The wheel of a release."""
    into = folder / f"{package}-{version}"
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(into), f"{package}=={version}"], check=True)
    return next(into.glob("*.whl"))


def licence_of(wheel: Path) -> str:
    """What the metadata says, in one line; "" unless that is a permissive licence and no other."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    said = [headers.get("License-Expression", ""), headers.get("License", "")[:80]]
    said += [c for c in headers.get_all("Classifier", []) if c.startswith("License ::")]
    text = "; ".join(dict.fromkeys(part.splitlines()[0] for part in said if part.strip()))
    return text if PERMISSIVE.search(text) and not COPYLEFT.search(text) else ""


def modules(wheel: Path) -> dict[str, str]:
    """The Python sources of a wheel by path."""
    with zipfile.ZipFile(wheel) as archive:
        infos = [i for i in archive.infolist() if i.filename.endswith(".py") and i.file_size <= MOST_SOURCE]
        return {i.filename: archive.read(i).decode("utf-8", "replace") for i in infos}


def parts(source: str) -> dict[str, str]:
    """A module's functions and classes by qualified name, each dedented, and the module itself as ""."""
    found = {"": source}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    lines = source.splitlines(keepends=True)

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                name = f"{prefix}{child.name}"
                found[name] = textwrap.dedent("".join(lines[first - 1 : child.end_lineno]))
                if isinstance(child, ast.ClassDef):
                    visit(child, f"{name}.")

    visit(tree, "")
    return found


def moderate(before: str, after: str) -> bool:
    """Whether both are of the wanted size and alike, but not the same."""
    if not all(LEAST_BYTES <= len(text.encode()) <= MOST_BYTES for text in (before, after)):
        return False
    alike = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).ratio()
    return LEAST_ALIKE <= alike <= MOST_ALIKE


def changed(releases: Releases) -> Iterator[dict[str, str]]:
    """The pairs of two releases in order of path and name."""
    for path in sorted(set(releases.before) & set(releases.after)):
        old, new = parts(releases.before[path]), parts(releases.after[path])
        for name in sorted(set(old) & set(new)):
            if moderate(old[name], new[name]):
                what = f"`{name}`" if name else "this module"
                yield {
                    "name": f"{releases.package}:{Path(path).stem}{':' if name else ''}{name}"[:64],
                    "instruction": f"Change {what} as {releases.package} {releases.new} did.",
                    "before": old[name],
                    "after": new[name],
                    "origin": f"{releases.package} {releases.old} and {releases.new}, {path}",
                    "licence": releases.licence,
                }


def releases_of(spec: str, folder: Path) -> Releases | None:
    """The two releases that `spec` names, unless their licence is not permissive."""
    match = _SPEC.fullmatch(spec)
    if not match:
        sys.exit(f"{spec}: give NAME==OLD..NEW")
    package, old, new = match.groups()
    wheels = [fetch(package, version, folder) for version in (old, new)]
    licences = [licence_of(wheel) for wheel in wheels]
    if not all(licences):
        print(f"{package}: no permissive licence in its metadata", file=sys.stderr)
        return None
    return Releases(package, old, new, licences[1], modules(wheels[0]), modules(wheels[1]))


def chosen(pairs: list[dict[str, str]], each: int, seed: str) -> list[dict[str, str]]:
    """At most `each` of them, none from a file that another one came from as long as there are others."""
    random.Random(seed).shuffle(pairs)
    taken: dict[str, int] = {}
    for pair in pairs:
        taken[pair["origin"]] = taken.get(pair["origin"], -1) + 1
        pair["_rank"] = f"{taken[pair['origin']]:04}"
    return sorted(pairs, key=lambda pair: pair.pop("_rank"))[:each]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("specs", nargs="+", metavar="NAME==OLD..NEW")
    parser.add_argument("--each", type=int, default=2, help="pairs of a package")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--folder", type=Path, help="where wheels are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for spec in options.specs:
            releases = releases_of(spec, options.folder or Path(temporary))
            found = list(changed(releases)) if releases else []
            print(f"{spec}: {len(found)} changed moderately", file=sys.stderr)
            for pair in chosen(found, options.each, f"{options.seed} {spec}"):
                print(json.dumps(pair, ensure_ascii=False))


if __name__ == "__main__":
    main()

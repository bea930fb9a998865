"""Count the source: lines, files, imports between files and rooms, the longest signature, class names used twice.

    python tests/house.py [REVISION ...] [--write]

Without a revision it counts the work tree. --write puts a row per revision into benchmarks/results/house.json, "rows".
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import json
import pathlib
import re
import subprocess
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "house.json"
SUFFIXES = (".py", ".cu", ".cuh", ".js", ".mjs", ".ts", ".css")
PACK = ("engine", "nodes")
AROUND = ("training", "benchmarks")
COUNTED = (*PACK, *AROUND, "tests", "web")
_NAMED = {ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr", ast.FunctionDef: "name", ast.AsyncFunctionDef: "name"}
VAGUE = {"said", "heard", "found", "what", "told", "asked"}  # names that do not say what a value is
TRANSLATED = re.compile(r"(What|Whether|Who|Whom|How many|How much)\b")  # how poor docstrings begin


def sources(revision: str) -> dict[str, str]:
    """Map paths to the text of every file, in a revision or the work tree. Files other than sources are empty."""
    if not revision:
        listed = git("ls-files", "-co", "--exclude-standard", "__init__.py", *COUNTED).decode().splitlines()
        paths = [(path, ROOT / path) for path in listed]
        return {path: at.read_text(encoding="utf-8") if is_source(path) else "" for path, at in paths if at.is_file()}
    kept = [folder for folder in COUNTED if git("ls-tree", revision, folder)]
    with tarfile.open(fileobj=io.BytesIO(git("archive", revision, "__init__.py", *kept))) as archive:
        held = {member.name: archive.extractfile(member) for member in archive}
        return {path: file.read().decode() if is_source(path) else "" for path, file in held.items() if file}


def is_source(path: str) -> bool:
    """True if lines of a file are counted."""
    return path.endswith(SUFFIXES)


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def count(files: dict[str, str]) -> dict:
    """Count lines, files, imports, signatures, names and docstrings."""
    trees = {path: ast.parse(text) for path, text in files.items() if path.endswith(".py")}
    names, signatures, docstrings, vague = collections.Counter(), [], [], 0
    for path, tree in trees.items():
        if not path.startswith(PACK):
            continue
        for node in ast.walk(tree):
            vague += stored_name(node).strip("_") in VAGUE
            if isinstance(node, ast.ClassDef):
                names[node.name] += 1
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = node.args
                signatures.append((len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs), path, node.name))
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                docstrings += filter(None, [ast.get_docstring(node)])
    longest = max(signatures)
    imported = {(path, to) for path in trees for to in imports(path, trees)}
    return {
        "lines": {folder: lines_of(files, folder) for folder in COUNTED},
        "rooms": {"pack": rooms(files, imported, PACK), "with_training_and_benchmarks": rooms(files, imported)},
        "folders": {folder: of_folder(files, imported, folder) for folder in PACK},
        "flat_modules_in_engine": sum(path.count("/") == 1 and path.startswith("engine/") for path in trees),
        "longest_signature": {"parameters": longest[0], "function": longest[2], "file": longest[1]},
        "class_names_twice": sorted(name for name, times in names.items() if times > 1 and not name.startswith("_")),
        "vague_names": vague,
        "docstrings": len(docstrings),
        "docstrings_translated": sum(bool(TRANSLATED.match(text)) for text in docstrings),
        "knows_no": sum(len(re.findall(r"\bKnows no(thing)?\b", text)) for text in docstrings),
    }


def stored_name(node: ast.AST) -> str:
    """Return the name that a node binds: a variable, parameter, attribute or function. Empty if it binds none."""
    if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Store):
        return ""
    return next((getattr(node, name) for kind, name in _NAMED.items() if isinstance(node, kind)), "")


def lines_of(files: dict[str, str], folder: str, suffix: str = "") -> int:
    """Count the lines of a folder's sources."""
    own = [text for path, text in files.items() if path.startswith(folder + "/") and path.endswith(suffix)]
    return sum(text.count("\n") for text in own)


def rooms(files: dict[str, str], imported: set[tuple[str, str]], folders: tuple[str, ...] = PACK + AROUND) -> dict:
    """Count rooms and arrows of the pack, as in ARCHITECTURE.md. Outside engine/, each folder is one room."""

    def room(path: str) -> str:
        return of_part(path) if path.startswith("engine/") else path.split("/")[0]

    own = {path for path in files if "/" not in path or path.split("/")[0] in folders}
    arrows = {(room(path), room(to)) for path, to in imported if path in own and to in own}
    return {"rooms": len(set(map(room, own))), "arrows": sum(one != other for one, other in arrows)}


def of_folder(files: dict[str, str], imported: set[tuple[str, str]], folder: str) -> dict:
    """Count lines, files, parts (a folder or a file beside it), and arrows (imports of one part by another)."""
    own = [path for path in files if path.startswith(folder + "/") and is_source(path)]
    arrows = {(of_part(path), of_part(to)) for path, to in imported if path.startswith(folder + "/")}
    lines = {suffix: lines_of(files, folder, suffix) for suffix in SUFFIXES[:3]}
    parts, between = len(set(map(of_part, own))), sum(one != other for one, other in arrows)
    return {"lines": sum(lines.values()), "files": len(own), "rooms": parts, "arrows": between, **lines}


def of_part(path: str) -> str:
    return "/".join(path.split("/")[:2])


def imports(path: str, trees: dict[str, ast.Module]):
    """Yield the files that a file imports, by their place in the pack or by the pack's name."""
    for node in ast.walk(trees[path]):
        if isinstance(node, ast.Import):
            named = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = path.split("/")[: -node.level] if node.level else []
            base += node.module.split(".") if node.module else []
            named = [base, *([*base, alias.name] for alias in node.names)]
        else:
            continue
        for parts in named:
            place = "/".join(parts).removeprefix("higgs_tts/")
            yield from (found for found in (f"{place}.py", f"{place}/__init__.py") if found in trees and found != path)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="*")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = []
    for revision in given.revisions or [""]:
        commit = git("rev-parse", "--short", revision or "HEAD").decode().strip()
        date = git("show", "-s", "--format=%cs", revision or "HEAD").decode().strip()
        rows.append({"commit": commit, "date": date} | count(sources(revision)))
    if given.write:
        result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
        kept = [row for row in result.get("rows", []) if row["commit"] not in {row["commit"] for row in rows}]
        result["rows"] = kept + rows
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

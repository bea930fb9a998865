"""Count the source: lines, files, imports between files, the longest signature, and class names used twice.

    python benchmarks/house.py [REVISION ...] [--write]

Without a revision it counts the work tree. --write puts a row per revision into results/house.json, "rows".
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import re
import subprocess

from common import ROOT

RESULT = ROOT / "benchmarks" / "results" / "house.json"
FOLDERS = ("engine", "nodes")
SUFFIXES = (".py", ".cu", ".cuh")
TRANSLATED = re.compile(r"(What|Whether|Who|Whom|How many|How much)\b")  # how poor docstrings begin


def sources(revision: str) -> dict[str, str]:
    """Map paths to the text of every source file, in a revision or the work tree."""
    if not revision:
        paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
        return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    listed = git("ls-tree", "-r", "--name-only", revision, *FOLDERS).splitlines()
    return {path: git("show", f"{revision}:{path}") for path in listed if path.endswith(SUFFIXES)}


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def count(files: dict[str, str]) -> dict:
    """Count lines, files, imports, signatures, names and docstrings."""
    trees = {path: ast.parse(text) for path, text in files.items() if path.endswith(".py")}
    names, signatures, docstrings = collections.Counter(), [], []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names[node.name] += 1
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = node.args
                signatures.append((len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs), path, node.name))
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                docstrings += filter(None, [ast.get_docstring(node)])
    longest = max(signatures)
    return {
        "folders": {folder: of_folder(files, trees, folder) for folder in FOLDERS},
        "flat_modules_in_engine": sum(
            path.count("/") == 1 and path.endswith(".py") for path in trees if path[0] == "e"
        ),
        "longest_signature": {"parameters": longest[0], "function": longest[2], "file": longest[1]},
        "class_names_twice": sorted(name for name, times in names.items() if times > 1 and not name.startswith("_")),
        "docstrings": len(docstrings),
        "docstrings_translated": sum(bool(TRANSLATED.match(text)) for text in docstrings),
        "knows_no": sum(len(re.findall(r"\bKnows no(thing)?\b", text)) for text in docstrings),
    }


def of_folder(files: dict[str, str], trees: dict[str, ast.Module], folder: str) -> dict:
    """Count lines, files, rooms (a folder or a file beside it), and arrows (imports of one file by another)."""
    own = {path: text for path, text in files.items() if path.startswith(folder + "/")}
    rooms = {"/".join(path.split("/")[:2]) for path in own}
    arrows = {(path, to) for path in own if path in trees for to in imports(path, trees[path], files)}
    between = {(room_of(path), room_of(to)) for path, to in arrows} - {(room, room) for room in map(room_of, files)}
    lines = {
        suffix: sum(text.count("\n") for path, text in own.items() if path.endswith(suffix)) for suffix in SUFFIXES
    }
    return {"lines": sum(lines.values()), "files": len(own), "rooms": len(rooms), "arrows": len(between), **lines}


def room_of(path: str) -> str:
    return "/".join(path.split("/")[:2])


def imports(path: str, tree: ast.Module, files: dict[str, str]):
    """Return the files that a file imports."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = path.split("/")[: -node.level] + (node.module.split(".") if node.module else [])
        for name in ["", *(alias.name for alias in node.names)]:
            place = "/".join([*base, name] if name else base)
            for found in (f"{place}.py", f"{place}/__init__.py"):
                if found in files and found != path:
                    yield found


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="*")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = []
    for revision in given.revisions or [""]:
        commit = git("rev-parse", "--short", revision or "HEAD").strip()
        rows.append({"commit": commit, "date": git("show", "-s", "--format=%cs", revision or "HEAD").strip()})
        rows[-1] |= count(sources(revision))
    if given.write:
        result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
        kept = [row for row in result.get("rows", []) if row["commit"] not in {row["commit"] for row in rows}]
        result["rows"] = kept + rows
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

"""Compare the code of two revisions without its words: docstrings, messages and comments may differ, nothing else.

    python tests/same_code.py REVISION [--names]

Prints the files whose code differs from that of the revision, and exits with 1 if there is any. With --names, names may
differ too, unless two variables of a function got the same one.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import re
import subprocess
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
_VARIABLES = {ast.Name: "id", ast.arg: "arg"}
_NAMED = {ast.Attribute: "attr", ast.keyword: "arg", ast.alias: "name", ast.ExceptHandler: "name"}
_NAMED |= dict.fromkeys((ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef), "name")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def bare_tree(text: str) -> ast.Module:
    """Return the tree of a module without docstrings, with every string blank, and only the values of f-strings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        has_docstring = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if has_docstring and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.JoinedStr):
            node.values = [value for value in node.values if isinstance(value, ast.FormattedValue)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return tree


def python_code(text: str) -> str:
    """Return a module's bare tree as text, with the values of f-strings sorted: a sentence may change their order."""
    tree = bare_tree(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            node.values.sort(key=ast.dump)
    return ast.dump(tree).replace("JoinedStr(values=[])", "Constant(value='')")


def blanked(node: ast.AST, line: int = 0) -> Iterator[tuple[int, str]]:
    """Blank the names in a tree. Yield its variables, each with the line of the outermost function around it."""
    field = (_NAMED | _VARIABLES).get(type(node), "")
    if field and getattr(node, field) is not None:
        if type(node) in _VARIABLES:
            yield line, getattr(node, field)
        setattr(node, field, "")
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from blanked(child, line or (child.lineno if is_function else 0))


def only_renamed(before: str, after: str) -> bool:
    """True if modules differ in names at most, and no two variables of a function got the same one."""
    old, new = bare_tree(before), bare_tree(after)
    were, now = [*blanked(old)], [*blanked(new)]
    return ast.dump(old) == ast.dump(new) and len({*zip(were, now, strict=True)}) == len({*now})


def cuda_code(text: str) -> list[str]:
    """Return the tokens of a CUDA source without comments."""
    return _COMMENT.sub(" ", text).split()


def differs(path: str, revision: str, names: bool) -> bool:
    """True if a file's code is not that of the revision, or the revision has no such file."""
    before = subprocess.run(["git", "show", f"{revision}:{path}"], cwd=ROOT, capture_output=True, check=False)
    code = python_code if path.endswith(".py") else cuda_code
    now = (ROOT / path).read_text(encoding="utf-8")
    if before.returncode == 0 and names and path.endswith(".py"):
        return not only_renamed(before.stdout.decode(), now)
    return before.returncode != 0 or code(before.stdout.decode()) != code(now)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--names", action="store_true", help="let names differ")
    given = parser.parse_args()
    command = ["git", "diff", "--name-only", "--diff-filter=d", given.revision]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    paths = [path for path in names.stdout.decode().split() if path.endswith((".py", ".cu", ".cuh"))]
    changed = [path for path in paths if differs(path, given.revision, given.names)]
    print("\n".join(changed) or f"the code of {len(paths)} files is the same")
    return bool(changed)


if __name__ == "__main__":
    raise SystemExit(main())

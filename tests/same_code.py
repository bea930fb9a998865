"""Compare the code of two revisions without its words: docstrings, messages and comments may differ, nothing else.

    python tests/same_code.py REVISION

Prints the files whose code differs from that of the revision, and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def python_code(text: str) -> str:
    """Return the tree of a module without docstrings and with every string blank."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        has_docstring = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if has_docstring and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.JoinedStr):  # the values, whose order a sentence may change
            values = [value for value in node.values if isinstance(value, ast.FormattedValue)]
            node.values = sorted(values, key=ast.dump)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree).replace("JoinedStr(values=[])", "Constant(value='')")


def cuda_code(text: str) -> list[str]:
    """Return the tokens of a CUDA source without comments."""
    return _COMMENT.sub(" ", text).split()


def differs(path: str, revision: str) -> bool:
    """True if a file's code is not that of the revision, or the revision has no such file."""
    before = subprocess.run(["git", "show", f"{revision}:{path}"], cwd=ROOT, capture_output=True, check=False)
    code = python_code if path.endswith(".py") else cuda_code
    now = (ROOT / path).read_text(encoding="utf-8")
    return before.returncode != 0 or code(before.stdout.decode()) != code(now)


def main() -> int:
    """Run the command."""
    (revision,) = sys.argv[1:]
    command = ["git", "diff", "--name-only", "--diff-filter=d", revision]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    paths = [path for path in names.stdout.decode().split() if path.endswith((".py", ".cu", ".cuh"))]
    changed = [path for path in paths if differs(path, revision)]
    print("\n".join(changed) or f"the code of {len(paths)} files is the same")
    return bool(changed)


if __name__ == "__main__":
    raise SystemExit(main())

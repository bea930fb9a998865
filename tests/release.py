"""Make a release: its version in the sources, its date in the changelog, a commit and a tag. Nothing is pushed.

python tests/release.py 0.2.0
"""

from __future__ import annotations

import datetime
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPEN = "(not released yet)"
VERSIONS = {  # file -> the line that holds the version
    "pyproject.toml": re.compile(r'^version = "([^"]+)"', re.MULTILINE),
    "engine/core/config.py": re.compile(r'^VERSION = "([^"]+)"', re.MULTILINE),
}


def release(root: pathlib.Path, version: str, date: datetime.date) -> str:
    """Commit and tag `version` in the repository at `root`. Returns what to do next.

    Raises SystemExit, with nothing changed, if the version is not one, is tagged, has no open entry in CHANGELOG.md, or
    if files have changes that are not committed.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"{version} is not a version. Give three numbers, such as 0.2.0.")
    if _git(root, "tag", "--list", f"v{version}"):
        raise SystemExit(f"v{version} is tagged already. Give the next version.")
    if changed := _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise SystemExit(f"Commit these changes first, or put them away:\n{changed}")
    path, heading = root / "CHANGELOG.md", f"## {version} {OPEN}\n"
    changelog = path.read_text(encoding="utf-8")
    _, found, rest = changelog.partition(heading)
    entry = rest.partition("\n## ")[0].strip()
    if not found or not entry:
        raise SystemExit(f"CHANGELOG.md has no entry under '{heading.strip()}'. Write what changed for users first.")
    path.write_text(changelog.replace(heading, f"## {version} ({date})\n"), encoding="utf-8", newline="\n")
    for name, line in VERSIONS.items():
        text = (root / name).read_text(encoding="utf-8")
        match = line.search(text)
        assert match, f"{name} has no version"
        (root / name).write_text(
            text[: match.start(1)] + version + text[match.end(1) :], encoding="utf-8", newline="\n"
        )
    _git(root, "commit", "--quiet", "--all", "--message", f"release: Version {version}")
    # Verbatim: lines of the changelog that begin with # are not comments.
    _git(root, "tag", "--cleanup=verbatim", "--annotate", f"v{version}", "--message", f"Version {version}\n\n{entry}\n")
    return f"Look at it: git show v{version}. Publish it: git push origin HEAD v{version}"


def _git(root: pathlib.Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, encoding="utf-8").stdout.rstrip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(release(ROOT, sys.argv[1], datetime.date.today()))

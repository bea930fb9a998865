"""The package for ComfyUI's registry: its files, its size, and what the registry's scan finds."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "registry.md").read_text(encoding="utf-8")
LIMIT = 47e6  # bytes

# The first seven are known from what the registry has told publishers, the rest are what such scans look for.
PATTERNS = {
    ".connect(": r"\.connect\s*\(",
    ".bind(": r"\.bind\s*\(",
    ".send(": r"\.send(all)?\s*\(",
    "aiohttp.ClientSession": r"\baiohttp\.ClientSession\b",
    "subprocess": r"\bsubprocess\b",
    "os.system": r"\bos\.(system|popen|startfile)\b",
    "onload": r"\bon(load|error)\s*=",
    "os.environ": r"\bos\.(environ|getenv)\b",
    "socket": r"\bsocket\.(socket|create_connection)\b",
    "http": r"\b(http\.client|urlopen|requests\.(get|post|put|request|Session))\b",
    "exec(": r"\bexec\s*\(",
    "eval(": r"\beval\s*\(",
    "__import__": r"\b__import__\b",
    "pickle": r"\b(pickle\.loads?|torch\.load)\b",
    "CDLL": r"\bCDLL\b",
    "b64decode": r"\bb64decode\b",
}


def listed(*options: str) -> set[str]:
    return {name for name in git("ls-files", "-z", *options).split("\0") if name}


def git(*words: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no checkout of git here: {error}")


@pytest.fixture(scope="module")
def shipped() -> list[pathlib.Path]:
    """Return the files that `comfy node publish` packs: tracked by git and not in .comfyignore."""
    names = listed() - listed("-ci", "-X", ".comfyignore")
    return [path for path in (ROOT / name for name in sorted(names)) if path.is_file()]


def workflow(name: str) -> dict:
    """Return a workflow of GitHub. YAML reads its key `on` as True."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))


def test_a_version_is_published_by_its_tag_once_all_tests_have_passed():
    publish, test = workflow("publish.yml"), workflow("test.yml")
    assert publish[True]["push"] == {"tags": ["v*"]}
    assert publish["jobs"]["tests"] == {"uses": "./.github/workflows/test.yml"} and "workflow_call" in test[True]
    assert publish["jobs"].keys() == {"tests", "publish"} and publish["jobs"]["publish"]["needs"] == "tests"
    (check,) = [step["run"] for step in publish["jobs"]["publish"]["steps"] if "run" in step]
    assert check.startswith('grep -qxF "version = ') and "GITHUB_REF_NAME#v" in check


def test_ci_installs_by_lock_files():
    rows = workflow("test.yml")["jobs"]["test"]["strategy"]["matrix"]["versions"]
    for row in rows:
        locked = (ROOT / row["constraints"]).read_text(encoding="utf-8").splitlines()
        for library in row["libraries"].split():
            assert any(f"{line}==".startswith(f"{library}==") for line in locked), f"{library} is not locked"
    (install,) = [step["run"] for step in workflow("test.yml")["jobs"]["test"]["steps"] if "pip" in step.get("run", "")]
    assert "-c ${{ matrix.versions.constraints }}" in install


def test_only_files_that_users_need_are_shipped(shipped):
    names = {path.relative_to(ROOT).as_posix() for path in shipped}
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders == {"docs", "engine", "locales", "nodes", "subgraphs", "web", "workflows"}
    assert names >= {"__init__.py", "LICENSE", "README.md", "pyproject.toml", "requirements.txt"}
    assert {pathlib.Path(name).suffix for name in names if name.startswith("docs/")} == {".md"}
    assert "docs/registry.md" not in names


def test_the_archive_is_small_enough(shipped):
    """The weights hardly compress, so the files' own sizes are what counts."""
    assert sum(path.stat().st_size for path in shipped) < LIMIT


def test_the_page_gives_a_reason_for_each_match_of_the_registry_s_scan(shipped):
    found = set()
    for path in shipped:
        if path.suffix in (".flac", ".jpg", ".safetensors"):
            continue
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT).as_posix()
        found |= {(name, pattern) for pattern, looks in PATTERNS.items() if re.search(looks, text)}
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| (\S.+) \|$", PAGE, re.MULTILINE)
    told = {(name, pattern) for name, pattern, _ in rows}
    assert len(told) == len(rows), "a row of docs/registry.md stands there twice"
    assert not found - told, "add these to docs/registry.md, each with its reason"
    assert not told - found, "take these from docs/registry.md"

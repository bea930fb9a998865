"""The release command: version, changelog, commit and tag, or a refusal that changes nothing."""

import datetime
import shutil
import subprocess

import pytest
from higgs_tts.engine import VERSION
from higgs_tts.tests.release import ROOT, VERSIONS, release

DATE = datetime.date(2027, 1, 31)
FILES = {
    "CHANGELOG.md": "# Changelog\n\n## 1.2.0 (not released yet)\n\n### Added\n\n- é\n\n## 1.1.0 (2026-12-01)\n\nOld.\n",
    "pyproject.toml": '[project]\nname = "x"\nversion = "1.1.0"\n[tool.x]\ntarget-version = "py310"\n',
    "engine/core/config.py": 'VERSION = "1.1.0"  # of the pack\n',
}


def git(root, *words):
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, encoding="utf-8").stdout


@pytest.fixture
def root(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "Anna")
    git(tmp_path, "config", "user.email", "anna@example.com")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "First")
    return tmp_path


def test_a_release_has_its_version_everywhere_and_its_entry_in_the_tag(root):
    advice = release(root, "1.2.0", DATE)
    for name, line in VERSIONS.items():
        assert line.search((root / name).read_text(encoding="utf-8"))[1] == "1.2.0"
    assert 'target-version = "py310"' in (root / "pyproject.toml").read_text(encoding="utf-8")
    assert "## 1.2.0 (2027-01-31)\n" in (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "log", "--format=%s").splitlines() == ["release: Version 1.2.0", "First"]
    message = git(root, "tag", "--list", "--format=%(contents)", "v1.2.0")
    assert "### Added\n\n- é\n" in message and "Old" not in message
    assert "git push origin HEAD v1.2.0" in advice


def test_the_sources_have_the_lines_that_a_release_changes():
    found = [line.findall((ROOT / name).read_text(encoding="utf-8")) for name, line in VERSIONS.items()]
    assert found == [[VERSION]] * len(VERSIONS)


@pytest.mark.parametrize(
    ("version", "says"),
    [("1.2", "three numbers"), ("v1.2.0", "three numbers"), ("1.1.0", "no entry"), ("1.3.0", "no entry")],
)
def test_a_version_that_cannot_be_released_changes_nothing(root, version, says):
    with pytest.raises(SystemExit, match=says):
        release(root, version, DATE)
    assert git(root, "status", "--porcelain") == "" and git(root, "tag") == ""


def test_a_changed_file_is_named(root):
    (root / "pyproject.toml").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"pyproject\.toml"):
        release(root, "1.2.0", DATE)


def test_a_version_is_released_once(root):
    release(root, "1.2.0", DATE)
    with pytest.raises(SystemExit, match="tagged already"):
        release(root, "1.2.0", DATE)

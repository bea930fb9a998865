"""Changes of files fail, or end the process, at places chosen anew in each run: nothing is lost or half written."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="no gcc on Linux here to preload with")
def test_a_write_that_fails_leaves_the_earlier_or_the_whole(tmp_path):
    pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    library = tmp_path / "write_faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, TESTS / "write_faults.c", "-ldl"], check=True)
    command = [sys.executable, TESTS / "write_faults.py", "3"]
    done = subprocess.run(command, env=os.environ | {"LD_PRELOAD": str(library)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 9 and not {row["operation"]: row["failing"] for row in rows if row["failing"]}

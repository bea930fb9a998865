"""Ctrl-C while the terminal's modules load."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.skipif(os.name != "posix", reason="Windows ends the process by itself")
@pytest.mark.parametrize("run", [["-m", "engine"], [str(ROOT / "engine")]], ids=["module", "folder"])
@pytest.mark.parametrize(("ignored", "ends"), [(False, (130, "")), (True, (1, "went on"))])
def test_ctrl_c_during_imports_ends_the_process_quietly_unless_ignored(tmp_path, run, ignored, ends):
    (tmp_path / "torch.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit('went on')\n"
    )

    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)

    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, *run, "say", "Hello."]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, preexec_fn=ignore)
    assert (done.returncode, done.stderr.strip()) == ends

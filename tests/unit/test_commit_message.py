import pathlib
import shutil
import subprocess

import pytest

HOOK = pathlib.Path(__file__).resolve().parents[2] / ".githooks" / "commit-msg"


@pytest.mark.skipif(shutil.which("sh") is None, reason="Windows has no sh but the one that comes with git")
@pytest.mark.parametrize(
    ("subject", "complaint"),
    [
        ("scheduler: Go on after a dropped row", ""),
        ("prompt: " + "A" * 64, ""),
        ("prompt: Read a 2-second “pause” as 2 s, and tell of it in the node’s i", ""),
        ("prompt: " + "A" * 65, "over 72 characters"),
        ("Go on after a dropped row", "the area first"),
        ("scheduler: Go on after a dropped row; tests: Wait for it", "two subjects"),
    ],
)
def test_a_commit_has_one_short_subject(tmp_path, subject, complaint):
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nWhat else there is to say, as long as it likes; in any form.\n", encoding="utf-8")
    done = subprocess.run(["sh", str(HOOK), str(message)], capture_output=True, text=True)
    assert done.returncode == bool(complaint) and complaint in done.stderr

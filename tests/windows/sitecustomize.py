"""What Python does at its start under Wine: imports from the current folder, as without a ._pth, and no CopyFile2."""

import _winapi
import os
import sys

sys.path.insert(0, os.getcwd())
if hasattr(_winapi, "CopyFile2"):
    del _winapi.CopyFile2  # Wine 8 lacks it; shutil then copies as Python 3.11 does

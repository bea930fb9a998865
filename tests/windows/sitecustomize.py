"""Startup of Python under Wine: imports as without a ._pth file, and no CopyFile2."""

import _winapi
import os
import sys

sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
if hasattr(_winapi, "CopyFile2"):
    del _winapi.CopyFile2  # Wine 8 lacks it; shutil then copies as Python 3.11 does

"""Startup of Python under Wine: imports as without a ._pth file, no CopyFile2, and an errno for a held lock."""

import _winapi
import errno
import msvcrt
import os
import sys

sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
if hasattr(_winapi, "CopyFile2"):
    del _winapi.CopyFile2  # Wine 8 lacks it; shutil then copies as Python 3.11 does
_locking = msvcrt.locking


def locking(file: int, mode: int, size: int) -> None:
    """Lock as Windows does, which says EACCES where another handle holds the bytes. Wine 8 leaves errno 0."""
    try:
        _locking(file, mode, size)
    except OSError as error:
        raise OSError(error.errno or errno.EACCES, error.strerror) from error


msvcrt.locking = locking

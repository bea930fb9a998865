"""Entry point: `python -m engine` in the pack's folder, or `python FOLDER/engine` anywhere. See terminal.py."""

import importlib.util
import sys
from pathlib import Path

# Run as a folder, for Windows portable, whose Python imports modules only from its own folder.
if not __package__:
    here = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        "engine", here / "__init__.py", submodule_search_locations=[str(here)]
    )
    assert spec and spec.loader
    sys.modules["engine"] = importlib.util.module_from_spec(spec)
    __package__ = "engine"
    from .interrupt import quit_at_once

    quit_at_once()
    spec.loader.exec_module(sys.modules["engine"])

from .interrupt import raise_again
from .terminal import main

if __name__ == "__main__":
    raise_again()
    sys.exit(main())

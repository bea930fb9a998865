"""Import the pack as `higgs_tts`.

With the repository's root on sys.path, `import nodes` would find the pack's folder instead of ComfyUI's nodes.py.
"""

import importlib.util
import os
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _import_pack():
    spec = importlib.util.spec_from_file_location(
        "higgs_tts", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["higgs_tts"] = module
    spec.loader.exec_module(module)


if "higgs_tts" not in sys.modules:
    _import_pack()

from higgs_tts.engine.cuda import cubin_cache  # noqa: E402
from higgs_tts.tests.kept import KEPT  # noqa: E402
from higgs_tts.tests.skips import unexpected  # noqa: E402

# Minutes rather than seconds, and seldom what a change breaks: `make fast` leaves them out, `make test` does not.
SLOW = tuple(
    f"tests/unit/{name}"
    for name in (
        "emulation/",
        "test_decode_benchmark",
        "test_embedded",
        "test_environment",
        "test_kernels",
        "test_training",
    )
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.relative_to(ROOT).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    # A quarter of a minute for one test: as the last, it would run while the other worker has nothing left.
    items.sort(key=lambda item: item.path.name != "test_write_faults.py")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Fail the run for skips not listed in ALLOWED_SKIPS. Without the variable, all are allowed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (list_ := os.environ.get("ALLOWED_SKIPS")) and reporter and exitstatus == pytest.ExitCode.OK:
        reasons = [report.longrepr[2] for report in reporter.stats.get("skipped", [])]
        if wrong := unexpected(reasons, ROOT / list_):
            reporter.write_line("\n".join(["", f"skips that {list_} does not name:", *wrong]), red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def _own_cubins(tmp_path_factory):
    """Keep aligning heads in the session's folder, and compiled kernels among what tests keep, not in the user's."""
    place = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cubin_cache, "cache_folder", lambda: place)
        patch.setattr(cubin_cache, "folder", lambda: KEPT / "cubins")
        patch.setattr(cubin_cache, "MOST", 1000)
        yield


torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other

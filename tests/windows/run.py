"""Run the CPU tests with Windows' Python under Wine, one process per file and two at a time, and count what they say.

    python tests/windows/run.py FOLDER [FILE ...]

FOLDER is what set_up.sh made. Without files it runs all of tests/unit and tests/golden but slow tests.
FOLDER/results.json has the counts, FOLDER/logs what each file printed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFIXES = ("prefix0", "prefix1")
LIMIT = 1200  # seconds for one file
QUICK = ["-m", "not slow and not matrix"]
VERSIONS = """
import json, platform, torch, numpy, transformers
print(json.dumps({module.__name__: module.__version__ for module in (torch, numpy, transformers)}
    | {"python": platform.python_version()}))
"""


def wine(folder: pathlib.Path, prefix: str, *arguments: str, limit: float = LIMIT) -> tuple[int | None, str]:
    """Run Windows' Python. Returns (exit code, output). The code is None if it was stopped after `limit` seconds."""
    environment = os.environ | {"WINEPREFIX": str(folder / prefix)}
    command = [str(folder / "python.sh"), *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate(timeout=limit)
        code = process.returncode
    except subprocess.TimeoutExpired:
        subprocess.run(["wineserver", "-k"], env=environment, check=False)  # ends this prefix's processes alone
        output, _ = process.communicate()
        code = None
    return code, output.decode(errors="replace")


def outcomes(report: pathlib.Path) -> dict:
    """Return a pytest report's counts: passed, the names of failed tests, skips by reason."""
    passed, failed, skipped = 0, [], collections.Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        children = {child.tag: child for child in case}
        if "failure" in children or "error" in children:
            failed.append(case.get("name"))
        elif "skipped" in children:
            skipped[reason_of(children["skipped"])] += 1
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "skipped": dict(skipped)}


def outcomes_so_far(output: str) -> dict:
    """Return the counts of a run that left no report, from what `pytest -v` printed."""
    failed = re.findall(r"::(\S.*?) (?:FAILED|ERROR) ", output)
    return {"passed": output.count(" PASSED "), "failed": failed, "skipped": {}}


def reason_of(skip: ElementTree.Element) -> str:
    """Return why a test was skipped, or a whole file."""
    message = skip.get("message", "")
    return (skip.text or "").rpartition("Skipped: ")[2].rstrip("')") if message == "collection skipped" else message


def run_file(folder: pathlib.Path, prefix: str, file: str, options: list[str]) -> dict:
    """Run a file's tests. A file that crashed or was stopped has `ended` false, and the counts until then."""
    log = folder / "logs" / f"{file.replace('/', '-')}.txt"
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    junit = f"--junitxml={report}"
    code, output = wine(folder, prefix, "-m", "pytest", file, "-v", "-p", "no:cacheprovider", junit, *options)
    log.write_text(output, encoding="utf-8")
    counts = outcomes(report) if report.exists() else outcomes_so_far(output)
    return {"file": file, **counts, "ended": report.exists(), "code": code}


def every_file() -> list[str]:
    """Return the files of CPU tests."""
    folders = (ROOT / "tests" / "unit", ROOT / "tests" / "golden")
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("test_*.py"))


def commit() -> str:
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return described.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--prefixes", type=int, choices=(1, 2), default=2, help="run so many files at a time")
    given = parser.parse_args()
    folder = given.folder.resolve()
    files = given.files or every_file()
    (folder / "logs").mkdir(exist_ok=True)
    free: queue.Queue[str] = queue.Queue()
    for prefix in PREFIXES[: given.prefixes]:
        free.put(prefix)

    def take(file: str) -> dict:
        prefix = free.get()
        try:
            result = run_file(folder, prefix, file, [] if given.files else QUICK)
        finally:
            free.put(prefix)
        words = f"{result['passed']} passed, {len(result['failed'])} failed, {sum(result['skipped'].values())} skipped"
        print(file, words if result["ended"] else f"did not end (code {result['code']})", flush=True)
        print(*(f"    {name}\n" for name in result["failed"]), sep="", end="", flush=True)
        return result

    versions = json.loads(wine(folder, PREFIXES[0], "-c", VERSIONS)[1].splitlines()[-1])
    results, is_good = [], True
    with ThreadPoolExecutor(given.prefixes) as workers:
        for result in workers.map(take, files):
            results.append(result)
            is_good = report(folder, results, versions)  # after each file, since a run takes long
    print(f"{folder}/results.json has the sums")
    return 0 if is_good else 1


def report(folder: pathlib.Path, results: list[dict], versions: dict) -> bool:
    """Write the sums so far. True if nothing failed."""
    skipped: collections.Counter[str] = collections.Counter()
    for result in results:
        skipped.update(result["skipped"])
    sums = {
        "commit": commit(),
        "wine": subprocess.run(["wine", "--version"], capture_output=True, text=True).stdout.strip(),
        "versions": versions,
        "files": len(results),
        "passed": sum(result["passed"] for result in results),
        "failed": [f"{result['file']}::{name}" for result in results for name in result["failed"]],
        "skipped": dict(skipped.most_common()),
        "did_not_end": [result["file"] for result in results if not result["ended"]],
    }
    (folder / "results.json").write_text(json.dumps(sums, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return not sums["did_not_end"] and not sums["failed"]


if __name__ == "__main__":
    sys.exit(main())

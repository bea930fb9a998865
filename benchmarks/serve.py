"""The server under load, and a cluster whose workers are killed.

    python benchmarks/serve.py --load --device cuda:0 [--model FOLDER]     1, 16, 64, 128 callers, streams of 20 words
    python benchmarks/serve.py --open --device cuda:0 [--model FOLDER] [--before FOLDER]   callers who come at random
    python benchmarks/serve.py --ray                                       two CPU workers, one killed each minute

--open makes 1, 10, 20, 30 calls a second, in the same order every time, and counts the streams whose playback ran dry.
With --before, an older version's folder is measured in turn with this one.

For --ray, `ratio` compares with one undisturbed worker, and `kills` says how often a worker was killed. The callers are
a process of their own (`callers.py`). Each part of the result names its device, commit and date. The server needs
aiohttp. Prints one JSON line last. `tests/faults/soak.py` has callers misbehave.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from common import ROOT, card, commit

RESULT = ROOT / "benchmarks" / "results" / "serve.json"
CALLERS = str(ROOT / "benchmarks" / "callers.py")
TEXT_CALLERS = str(ROOT / "benchmarks" / "text_callers.py")
TEXTS = 20  # streamed in one after the other
CLIENTS = "1,16,64,128"
START = 300.0  # seconds for a server to load its model
RATES = "1,10,20,30"  # calls a second
RAY_CLIENTS = 16
KILL_AT, KILL_EVERY = 20.0, 60.0  # seconds


def main():
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--model", help="checkpoint folder for --load and --open; without it the embedded one speaks")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", default=CLIENTS)
    parser.add_argument("--rates", default=RATES)
    parser.add_argument("--before", type=pathlib.Path, help="checkout of an older version for --open")
    parser.add_argument("--before-commit", default="")
    parser.add_argument("--warm", type=float, default=2.0, help="seconds before anything is counted, each time")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each number of callers, or rate")
    parser.add_argument("--frames", type=int, default=250, help="of an answer at most; random weights speak that long")
    parser.add_argument("--minutes", type=float, default=5.0, help="of --ray; one worker alone speaks a minute at most")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    given = parser.parse_args()
    result = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    if given.load:
        rows, result["ws_first_ms"] = load(given)
        result |= where(given.device) | {"checkpoint": pathlib.Path(given.model or "embedded").name, "rows": rows}
    if given.open:
        result["open_loop"] = arrivals(given)
    if given.ray:
        result["ray"] = disturbed(given.minutes) | where("cpu")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def where(device: str) -> dict:
    """Return a part's device, date and commit."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return card()
    return {"gpu": "CPU", "torch": torch.__version__, "date": str(datetime.date.today()), "commit": commit()}


def load(given: argparse.Namespace) -> tuple[list[dict], dict]:
    """Return a row for each number of callers, and times to the first sound of a text that streams in."""
    rows = []
    with served("--device", given.device, *(["--model", given.model] if given.model else [])) as port:
        for clients in given.clients.split(","):
            rows.append(called(port, "load", clients, given.warm, given.seconds, given.frames))
            print(rows[-1], flush=True)
        return rows, called(port, TEXTS, program=TEXT_CALLERS) | where(given.device)


def arrivals(given: argparse.Namespace) -> list[dict]:
    """Return a row for each version and number of calls a second."""
    about, rows = where(given.device), []
    versions = [("old", given.before, given.before_commit, "exact")] if given.before else []
    versions += [("new", ROOT, about["commit"], first) for first in ("exact", "early")]
    for which, root, of, first in versions:
        began, options = time.monotonic(), ["--early"] * (first == "early")
        options += ["--model", given.model] if given.model else []
        with served("--device", given.device, *options, root=root) as port:
            ready = {"first": first, "which": which, "ready_s": round(time.monotonic() - began, 1)}
            for rate in given.rates.split(","):
                row = called(port, "open", rate, given.seconds, given.frames)
                rows.append(row | ready | {"gpu": about["gpu"], "commit": of})
                print(rows[-1], flush=True)
    return rows


@contextlib.contextmanager
def served(*options: str, root: pathlib.Path = ROOT):
    """Yield the port of a server of the version in `root` in its own process, started as by users."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "engine", "serve", "--port", str(port), *options]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL)
    try:
        began = time.monotonic()
        while not is_healthy(port):
            if process.poll() is not None:
                raise SystemExit("the server has ended; what it said stands above")
            if time.monotonic() - began > START:
                raise SystemExit(f"the server was not ready within {START:.0f} s")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def health(port: int) -> dict:
    """Return what /health tells. Raises urllib's errors, also while no worker runs."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        return json.load(answer)


def disturbed(minutes: float) -> dict:
    """Compare one Ray worker with two, one of which is killed each minute."""
    ray = "--device", "cpu", "--ray", "--ray-actors"
    with tempfile.TemporaryDirectory() as folder:
        answers = f"{folder}/answers.json"
        with served(*ray, "1") as port:
            one = called(port, "compare", RAY_CLIENTS, min(60.0, 60 * minutes), answers)
        with served(*ray, "2") as port, killing(port) as kills:
            two = called(port, "compare", RAY_CLIENTS, 60 * minutes, answers)
    ratio = round(two["requests_s"] / one["requests_s"], 2)
    return {"callers": RAY_CLIENTS, "minutes": minutes, "kills": len(kills), **two, "one_worker": one, "ratio": ratio}


@contextlib.contextmanager
def killing(port: int):
    """Kill a running worker each minute, first after KILL_AT seconds, in turns. Yields the list of the killed."""
    killed, end = [], threading.Event()

    def kill():
        wait = KILL_AT
        while not end.wait(wait):
            workers = [one for one in health(port)["workers"] if one["state"] == "running"]
            os.kill(workers[len(killed) % len(workers)]["process"], signal.SIGKILL)
            killed.append(workers)
            wait = KILL_EVERY

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        end.set()
        thread.join()


def is_healthy(port: int) -> bool:
    """True if the server answers."""
    try:
        return health(port)["status"] == "healthy"
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def called(port: int, *what: object, program: str = CALLERS) -> dict:
    """Return the callers' report."""
    command = [sys.executable, program, str(port), *map(str, what)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()

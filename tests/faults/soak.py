"""A soak of the server: calls of every kind, many at once, by callers that misbehave. Nothing of them may stay.

    python tests/faults/soak.py [--requests 2000] [--warm-calls 1000] [--device cuda]    # "soak" of results/serve.json

Callers leave, send bad bodies, and interrupt text that streams in, in every phase. The server is a thread of this
process, whose rows, threads, open files and memory are counted; the callers are a process of their own
(`benchmarks/callers.py`). Linux only. Needs aiohttp. Prints one JSON line last.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pack
import torch
from higgs_tts.benchmarks.common import commit
from higgs_tts.engine import Engine, EngineConfig
from higgs_tts.engine.speech.request import SpeechRequest
from higgs_tts.engine.tools.tiny import write_tiny
from higgs_tts.tests.speech_servers import running

RESULT = pack.ROOT / "benchmarks" / "results" / "serve.json"
CLIENTS = 16
SETTLE = 10.0  # seconds after which ended calls must have left nothing behind
GONE = 20  # callers whose disconnect is timed


def main() -> None:
    """Run the soak; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--warm-calls", type=int, default=1000, help="before it, for the host's memory to settle")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    given = parser.parse_args()
    row = soak(given.requests, given.warm_calls, given.device)
    gpu = "CPU" if given.device == "cpu" else torch.cuda.get_device_name(given.device)
    row |= {"gpu": gpu, "torch": torch.__version__, "date": str(datetime.date.today()), "commit": commit()}
    result = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    given.out.write_text(json.dumps(result | {"soak": row}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(row))


def soak(requests: int, warm_calls: int, device: str) -> dict:
    """Count rows, threads, open files and host memory left after calls of every kind have ended."""
    with tempfile.TemporaryDirectory() as folder:
        write_tiny(pathlib.Path(folder) / "tiny", "v3")
        with Engine(EngineConfig(f"{folder}/tiny", device=device, context=1024)) as engine, running(engine) as at:
            port, speaker = at
            call(port, warm_calls)
            before = held(speaker)
            began = time.perf_counter()
            told = call(port, requests)
            seconds = time.perf_counter() - began
            after = held(speaker)
            gone = [leave(port, speaker) for _ in range(GONE)]
    grown = {f"leaked_{name}": after[name] - before[name] for name in ("threads", "files")}
    return {
        **told,
        "leaked_rows": after["rows"],
        **grown,
        "host_mb_growth": round(after["mb"] - before["mb"], 1),
        "row_free_ms_most": round(1000 * max(gone), 1),
        "seconds": round(seconds, 1),
    }


def call(port: int, requests: int) -> dict:
    """Have the callers call, and return their report."""
    command = [sys.executable, pack.ROOT / "benchmarks" / "callers.py", port, "soak", requests, CLIENTS]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def held(speaker) -> dict:
    """Return this process's resources once nothing is spoken. Requests still alive count as rows."""
    deadline = time.monotonic() + SETTLE
    while speaker.speaking and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # for sockets to close
    gc.collect()
    alive = sum(type(one) is SpeechRequest for one in gc.get_objects())
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    return {
        "rows": max(speaker.speaking, alive),
        "threads": sum(not one.name.startswith("asyncio_") for one in threading.enumerate()),  # that pool is bounded
        "files": len(os.listdir("/proc/self/fd")),
        "mb": next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024,
    }


def leave(port: int, speaker) -> float:
    """Return seconds from a caller's disconnect to a free row."""
    body = json.dumps({"input": "It goes on. " * 20, "response_format": "pcm", "stream": True, "retries": 0}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.recv(1 << 12)
        assert speaker.speaking == 1
    began = time.perf_counter()
    while speaker.speaking:
        time.sleep(0.001)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

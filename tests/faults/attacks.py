#!/usr/bin/env python
"""Attacks on a server of its own process, beside honest callers, and two signals beside callers that read nothing.

python tests/faults/attacks.py callers [--callers 64]     # into benchmarks/results/faults.json, "attacks"
python tests/faults/attacks.py signals [--starts 30]      # of each kind; "signals"

Honest callers must hear the same samples as without an attack. Linux only. Prints one JSON line last.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import pathlib
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

import pack
from higgs_tts.tests.faults.results import write

SHORT = {"input": "One apple.", "seed": 3, "max_new_tokens": 12, "retries": 0, "response_format": "pcm"}
LONG = {**SHORT, "input": "One. " + "[pause 60] " * 9 + "Two.", "response_format": "wav"}
MB = 1 << 20
HOST = "Host: 127.0.0.1\r\n"
HELLO = (
    f"GET /v1/audio/speech/stream HTTP/1.1\r\n{HOST}Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
).encode()
END = 60.0  # seconds that a server may take to end before it is killed


def main():
    """Run the command; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("callers", "signals"))
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--starts", type=int, default=30)
    given = parser.parse_args()
    if given.what == "callers":
        write("attacks", [beside(name, given.callers) for name in ("none", *ATTACKS)])
    else:
        write("signals", [signals(name, given.starts) for name in SILENT])


@contextlib.contextmanager
def serving():
    """Yield (process, port) of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-u", "-m", "engine", "serve", "--device", "cpu", "--port", str(port)]
    with subprocess.Popen(command, cwd=pack.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "stop with Ctrl+C" in process.stdout.readline()
            yield process, port
        finally:
            process.kill()


def post(body: dict | bytes, length: int | None = None) -> bytes:
    """Return a request. length: told, if it is not that of the body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\n{HOST}Connection: close\r\nContent-Length: {length or len(data)}\r\n\r\n"
    return head.encode() + data


def frame(message: dict | bytes, size: int | None = None) -> bytes:
    """Return a frame. size: told, if it is not that of the message."""
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return b"\x81\xff" + struct.pack(">Q", size or len(data)) + bytes(4) + data


CONFIG = frame({"type": "session.config", "max_new_tokens": 5, "retries": 0})
TEXT = frame({"type": "input.text", "text": "\n]" * 9500})
COMMIT = frame({"type": "input.commit"})
# By name: bytes of each connection, and how many there are.
SILENT = {
    "reads no whole answer": (post({**LONG, "stream": False}), 8),
    "reads no stream": (post({**LONG, "stream_format": "sse"}), 8),
    "body on its way": (post(b'{"ref_audio": "' + b"A" * 100_000, 18 * MB), 8),
    "frame on its way": (HELLO + frame(b"x" * 100_000, 18 * MB), 8),
    "says nothing": (b"", 8),
}
ATTACKS = {
    "line ends and brackets": (HELLO + CONFIG + TEXT * 20, 2),
    "commits for ever": (HELLO + CONFIG + COMMIT * 100_000, 4),
    "bodies on their way": (post(b'{"ref_audio": "' + b"A" * 18 * MB, 19 * MB), 60),
    "frames on their way": (HELLO + frame(b"x" * 18 * MB, 19 * MB), 60),
    "reads no stream": (post({**LONG, "stream_format": "sse"}), 16),
    "silent connections": (b"", 400),
}


@contextlib.contextmanager
def attacked(port: int, data: bytes, count: int):
    """Send bytes over so many connections, reading nothing, until the end."""
    connections = []

    def send(connection):
        with contextlib.suppress(OSError):
            connection.sendall(data)

    for _ in range(count):
        connections.append(socket.create_connection(("127.0.0.1", port), timeout=30))
        threading.Thread(target=send, args=(connections[-1],), daemon=True).start()
    try:
        yield
    finally:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def beside(name: str, callers: int) -> dict:
    """Return a row: what honest callers hear beside an attack, when, and the memory of the server."""
    heard: list[tuple[str, float]] = []

    def call(port: int):
        began = time.perf_counter()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            connection.sendall(post(SHORT))
            data = connection.recv(1 << 16)
            while b"\r\n\r\n" not in data or not data.partition(b"\r\n\r\n")[2]:
                data += (part := connection.recv(1 << 16))
                if not part:
                    break
            first = time.perf_counter() - began
            while part := connection.recv(1 << 16):
                data += part
            head, _, body = data.partition(b"\r\n\r\n")
            heard.append((f"{head[9:12].decode()} {hashlib.sha256(unchunked(body)).hexdigest()[:12]}", first))

    with serving() as (process, port):
        call(port)  # loads what the first call loads
        heard.clear()
        before = memory(process.pid, "VmRSS")
        with attacked(port, *ATTACKS[name]) if name != "none" else contextlib.nullcontext():
            time.sleep(2)
            threads = [threading.Thread(target=call, args=(port,)) for _ in range(callers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        grown = memory(process.pid, "VmHWM") - before
    firsts = sorted(first for _, first in heard)
    row = {"attack": name, "answered": len(heard), "answers": sorted({answer for answer, _ in heard})}
    row |= {"first_sound_median_s": round(statistics.median(firsts), 2), "first_sound_most_s": round(firsts[-1], 2)}
    row |= {"host_mb_growth": grown}
    print(row, flush=True)
    return row


def unchunked(data: bytes) -> bytes:
    """Return a body without its chunks' sizes."""
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        whole, data = whole + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return whole


def memory(pid: int, name: str) -> int:
    """Return a value in MB from the kernel's status of a process."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) // 1024


def signals(name: str, starts: int) -> dict:
    """Return a row: the seconds from the second signal to the end of the process."""
    seconds = []
    for _ in range(starts):
        with serving() as (process, port), attacked(port, *SILENT[name]):
            time.sleep(2)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            began = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END)
            seconds.append(time.perf_counter() - began)
    row = {"callers": name, "starts": starts, "seconds_median": round(statistics.median(seconds), 2)}
    row |= {"seconds_most": round(max(seconds), 2)}
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()

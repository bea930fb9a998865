"""A real ComfyUI in its own folder, started as by users, and a client of its API. Shared with the benchmarks.

COMFYUI_PATH names the folder of a ComfyUI, COMFYUI_PYTHON an interpreter with its requirements (default: this one).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SAVED = ROOT / "tests" / "golden" / "workflows_0.1.0"  # what users saved with 0.1.0
TODAY = ROOT / "workflows"
WAIT = 240  # seconds until a server or a prompt is given up; nothing is measured against it
CHECKPOINT = "higgs-tts-3-4b"  # the name that workflows saved with 0.1.0 carry
BUTTONS = ({"unload_models": True}, {"unload_models": True, "free_memory": True})  # what they post to /free
SUSPECT = re.compile(r"warn|error|traceback|exception|leak|captur|abort|could not", re.IGNORECASE)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def interpreter() -> str:
    """Return the Python that runs ComfyUI."""
    return os.environ.get("COMFYUI_PYTHON", sys.executable)


def is_on_windows() -> bool:
    """True if ComfyUI's Python is one of Windows, also under Wine."""
    return subprocess.check_output([interpreter(), "-c", "import os; print(os.name)"], text=True).strip() == "nt"


class Outcome:
    """The outcome of one prompt."""

    def __init__(self, comfy: Comfy, prompt: dict, refusal: dict | None, events: list, history: dict):
        self._comfy, self._prompt = comfy, prompt
        self.refusal, self.events, self._history = refusal, events, history

    def data(self, kind: str) -> list[dict]:
        return [event["data"] for event in self.events if event["type"] == kind]

    @property
    def end(self) -> str:
        """Return "success", "error", "interrupted" or "refused"."""
        return "refused" if self.refusal else self.events[-1]["type"].removeprefix("execution_")

    @property
    def error(self) -> str:
        """Return the error shown on the node, empty on success."""
        if self.refusal:
            return json.dumps(self.refusal)
        return "".join(data["exception_message"] for data in self.data("execution_error"))

    def _output(self, class_type: str) -> dict:
        assert not self.error, self.error
        (node,) = [node for node, entry in self._prompt.items() if entry["class_type"] == class_type]
        return self._history["outputs"][node]

    def text(self, class_type: str = "PreviewAny") -> str:
        return self._output(class_type)["text"][0]

    def text_of(self, node: str) -> str:
        """Return the text shown on the node of this number."""
        return self.texts_of(node)[0]

    def texts_of(self, node: str) -> list[str]:
        """Return the texts shown on the node of this number, one for each value of a list."""
        assert not self.error, self.error
        return self._history["outputs"][node]["text"]

    def audio(self, class_type: str = "PreviewAudio"):
        """Return (samples [S, C] float32, Hz) of the file that ComfyUI wrote."""
        (sound,) = self.audios(class_type)
        return sound

    def audios(self, class_type: str):
        """Return `audio` for each file of a batch."""
        import soundfile

        return [
            soundfile.read(
                self._comfy.base / saved["type"] / saved["subfolder"] / saved["filename"],
                dtype="float32",
                always_2d=True,
            )
            for saved in self._output(class_type)["audio"]
        ]


class Comfy:
    """A running ComfyUI."""

    def __init__(self, base: Path, flags: tuple[str, ...]):
        self.base, self.client = base, uuid.uuid4().hex
        while not self._start(flags):
            pass

    def _start(self, flags: tuple[str, ...]) -> bool:
        """Start it at a free port, and return False if another process has taken that meanwhile."""
        home = Path(os.environ["COMFYUI_PATH"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [interpreter(), "-X", "faulthandler", "main.py", "--port", str(self.port)]
        command += ["--base-directory", str(self.base), "--disable-api-nodes", "--database-url", "sqlite:///:memory:"]
        if (self.base / "page").is_dir():  # otherwise ComfyUI's own
            command += ["--front-end-root", str(self.base / "page")]
        command += flags
        environment = {**os.environ, "HF_HOME": str(self.base / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self.log = self.base / f"comfyui-{self.port}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + WAIT
        while not self._is_up():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                told = self.log.read_text(errors="replace", encoding="utf-8")
                if "already in use" in told:
                    return False
                raise RuntimeError(f"ComfyUI did not start:\n{told[-4000:]}")
            time.sleep(0.3)
        return True

    def _is_up(self) -> bool:
        try:
            return str(self.base) in self.get("/system_stats")["system"]["argv"]  # else another's answers
        except OSError:
            return False

    def fetch(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=WAIT) as answer:
            return answer.read()

    def get(self, path: str):
        return json.loads(self.fetch(path))

    def post(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return json.loads(answer.read() or b"{}")

    def run(self, prompt: dict, on_event=None) -> Outcome:
        """Queue `prompt` and wait for its end. `on_event(message)` gets every message on the way."""
        seen: list[dict] = []
        try:
            answer = asyncio.run(self._follow(prompt, seen, on_event))
        except urllib.error.HTTPError as refusal:
            return Outcome(self, prompt, json.loads(refusal.read()), seen, {})
        # ComfyUI runs what does not depend on refused nodes.
        refusal = {"node_errors": answer["node_errors"]} if answer["node_errors"] else None
        queued = answer["prompt_id"]
        # The worker writes the history just after it has told the browser.
        while queued not in (history := self.get(f"/history/{queued}")):
            time.sleep(0.02)
        return Outcome(self, prompt, refusal, seen, history[queued])

    async def _follow(self, prompt: dict, seen: list[dict], on_event) -> dict:
        """Queue `prompt`, add its messages to `seen` until it has ended, and return what was answered to it."""
        from aiohttp import ClientSession, WSMsgType  # ComfyUI's own: wherever that runs, it is there

        address = f"http://127.0.0.1:{self.port}/ws?clientId={self.client}"
        ends = ("execution_success", "execution_error", "execution_interrupted")
        async with ClientSession() as session, session.ws_connect(address, max_msg_size=0) as events:
            answer = self.post("/prompt", {"prompt": prompt, "client_id": self.client})
            queued = answer["prompt_id"]
            while not (seen and seen[-1]["type"] in ends and seen[-1]["data"].get("prompt_id") == queued):
                message = await events.receive(WAIT)
                if message.type == WSMsgType.TEXT:
                    seen.append(message.json())
                    if on_event:
                        on_event(seen[-1])
                elif message.type != WSMsgType.BINARY:  # a preview
                    raise ConnectionError("ComfyUI closed the websocket")
        return answer

    def until(self, condition) -> dict:
        """Return the probe's state of the engines (see probe/) once it meets a condition."""
        deadline = time.monotonic() + WAIT
        while not condition(state := self.get("/higgs_probe")):
            assert time.monotonic() < deadline, state
            time.sleep(0.1)
        return state

    def free(self, body: dict, condition) -> dict:
        """Press an Unload button until the probe's state meets a condition, and return the state.

        ComfyUI's worker overlooks a button that is pressed while it collects garbage after a run.
        """
        deadline = time.monotonic() + WAIT
        while True:
            self.post("/free", body)
            for _ in range(20):
                if condition(state := self.get("/higgs_probe")):
                    return state
                assert time.monotonic() < deadline, state
                time.sleep(0.1)

    def kill(self):
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def abort(self) -> str:
        """End it as a crash does, and return the end of its log, with the stacks of its threads."""
        self.process.send_signal(signal.SIGABRT)  # -X faulthandler
        self.process.wait()
        return self.log.read_text(errors="replace", encoding="utf-8")[-20_000:]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def lay_out(base: Path) -> None:
    """Create a ComfyUI's folders in `base`, with this pack and the tests' probe as its custom nodes."""
    for folder in ("custom_nodes", "models/higgs_tts", "models/TTS/higgs", "models/voices", "input", "user", "page"):
        (base / folder).mkdir(parents=True)
    (base / "page" / "index.html").write_text("<!doctype html>", encoding="utf-8")
    (base / "custom_nodes" / "ComfyUI-Higgs-TTS").symlink_to(ROOT, target_is_directory=True)
    shutil.copytree(Path(__file__).parent / "probe", base / "custom_nodes" / "probe")


def at_message(wanted: int, act: Callable[[], Any]) -> Callable[[dict[str, Any]], None]:
    """Return an on_event that acts once, at a prompt's message of this number that a node begins or goes on."""
    left = [wanted]

    def on_event(message: dict[str, Any]) -> None:
        left[0] -= message["type"] in ("executing", "progress")
        if not left[0]:
            left[0] -= 1
            act()

    return on_event


def add_checkpoints(base: Path, tiny: Path) -> None:
    """Copy the small checkpoints in `tiny`, `v3` and `v2`, to where ComfyUI's users keep them."""
    shutil.copytree(tiny / "v3", base / "models" / "higgs_tts" / CHECKPOINT)
    shutil.copytree(tiny / "v2", base / "models" / "TTS" / "higgs" / "v2")


def add_clips(base: Path) -> None:
    """Write reference.wav to ComfyUI's input folder, and anna.wav (with a transcript) and bob.wav to the voices."""
    voices = base / "models" / "voices"
    _write_clip(base / "input" / "reference.wav", 3)
    _write_clip(voices / "anna.wav", 2)
    _write_clip(voices / "bob.wav", 2)
    (voices / "anna.reference.txt").write_text("Hello, I am Anna.", encoding="utf-8")


def _write_clip(path: Path, seconds: float) -> None:
    import numpy as np
    import soundfile

    time_ = np.arange(int(44100 * seconds)) / 44100
    left = 0.4 * np.sin(2 * np.pi * 190 * time_) * (1 + np.sin(2 * np.pi * 3 * time_))
    soundfile.write(path, np.stack([left, 0.5 * left], 1).astype("float32"), 44100)  # stereo, an odd rate


@contextmanager
def serving(checkpoint: Path) -> Iterator[str]:
    """Yield the host:port of our own server, a process of its own on the CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "engine", "serve", "--model", str(checkpoint), "--port", str(port)]
    command += ["--device", "cpu", "--context", "2048"]
    server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + WAIT
    try:
        while not _is_healthy(port):
            assert server.poll() is None and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def suspects(log: Path, start: int, pattern: re.Pattern[str] = SUSPECT) -> set[str]:
    """Return the lines of a log, from byte `start` on, that look like trouble."""
    lines = COLOURS.sub("", log.read_bytes()[start:].decode(errors="replace")).splitlines()
    return {line.strip()[:300] for line in lines if pattern.search(line)}


def read_workflow(name: str, max_frames: int, folder: Path = SAVED, **changes: dict) -> dict:
    """Read a workflow in API format, with speech cut to `max_frames`. `changes`: {class_type: {input: value}}."""
    prompt = json.loads((folder / "api" / f"{name}.json").read_text(encoding="utf-8"))
    for entry in prompt.values():
        speaks = ("HiggsTTSSpeak", "HiggsTTSDialogue", "HiggsTTSLines", "HiggsTTSSubtitles", "HiggsTTSBook")
        if entry["class_type"] in speaks:
            entry["inputs"]["max_frames"] = max_frames
        entry["inputs"].update(changes.get(entry["class_type"], {}))
    return prompt

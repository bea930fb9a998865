"""Device memory left after ComfyUI unloads: a real server, with rounds of queue, Unload Models, queue.

In some rounds a rival model needs the memory in between, or ComfyUI requests a little of it, and the speech is
repeated. With --loras each round speaks with every one of SETTINGS. With --device="all GPUs" all of them speak, and
the free bytes are those of all. COMFYUI_PATH and COMFYUI_PYTHON are as for the tests in tests/comfyui. Prints one
JSON line, one row for each set of flags.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "comfyui"))

from common import write_shapes
from server import BUTTONS, CHECKPOINT, COLOURS, ROOT, WAIT, Comfy, lay_out, read_workflow, suspects

FLAGS = ("", "--disable-cuda-malloc")  # ComfyUI's defaults: cudaMallocAsync and Dynamic VRAM; then torch's allocator
SLACK = 2.0  # GiB of the card beside the rival: ComfyUI wants about 1.3 of them free, so the two do not fit together
SETTINGS = ((), (("one", 1.0),), (("one", 0.0),), (("one", 0.5),), (("one", 1.0), ("two", 0.5)))  # LoRAs and strengths
SENTENCES = "The garden is quiet this morning. A small bird sings behind the wall. Nobody has seen the cat. " * 4


def main():
    """Run all sets of flags, one server after another."""
    args = _arguments()
    if "COMFYUI_PATH" not in os.environ:
        raise SystemExit("Set COMFYUI_PATH to the folder of a ComfyUI.")
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder, "base")
        lay_out(base)
        shutil.copy(ROOT / "tests" / "faults" / "comfyui_probe.py", base / "custom_nodes")
        _write_checkpoint(base / "models" / "higgs_tts" / CHECKPOINT, args)
        if args.loras:
            _write_loras(base / "models")
        rows = [_row(args, base, flags) for flags in args.flags or FLAGS]
    result = {"comfyui": rows}
    if args.out:
        path = pathlib.Path(args.out)
        known = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(known | result, indent=1) + "\n")
    print(json.dumps(result))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--layers", type=int, default=4, help="layers of the published width")
    parser.add_argument("--tiny", action="store_true", help="a tiny checkpoint instead")
    parser.add_argument("--flags", action="append", help="--flags='--a --b' starts ComfyUI so; may be given again")
    parser.add_argument("--rival", type=float, default=6.0, help="GiB of weights of the model that competes, 0: none")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no round after this long in one server")
    parser.add_argument("--out", help="file to put the rows into, under 'comfyui'")
    parser.add_argument("--listen", action="store_true", help="a page plays while the nodes speak")
    parser.add_argument("--loras", action="store_true", help="speak with LoRAs, swapped without unloading in between")
    parser.add_argument("--device", default="auto", help="of Higgs Load Model")
    parser.add_argument("--logs", help="folder for the servers' logs")
    return parser.parse_args()


def _write_checkpoint(folder: pathlib.Path, args):
    if not args.tiny:
        write_shapes(folder, "v3", args.layers)
        return
    command = [sys.executable, "-m", "engine", "tiny", str(folder), "--family", "v3"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def _write_loras(models: pathlib.Path):
    """Write two adapters of every layer, with the tests' writer."""
    script = (
        "import pathlib, sys, pack; from higgs_tts.tests.peft_files import write_adapter; "
        "checkpoint, *targets = map(pathlib.Path, sys.argv[1:]); "
        "[write_adapter(checkpoint, target, kind) for target, kind in zip(targets, ('plain', 'rslora'))]"
    )
    command = [sys.executable, "-c", script, models / "higgs_tts" / CHECKPOINT]
    command += [models / "loras" / name for name in ("one", "two")]
    importing = dict(os.environ, PYTHONPATH=str(ROOT / "tests" / "faults"))  # pack.py
    subprocess.run(list(map(str, command)), check=True, env=importing)


def _row(args, base: pathlib.Path, flags: str) -> dict:
    """Run one server from start to end. A failure is reported in the row."""
    row = {"flags": flags, "crashes": 0}
    try:
        comfy = Comfy(base, tuple(flags.split()))
    except RuntimeError as error:
        return row | {"crashes": 1, "error": COLOURS.sub("", str(error))[-2000:]}
    quiet_until = comfy.log.stat().st_size  # ComfyUI's messages at startup are not ours
    session = Session(comfy, args)
    try:
        row |= _describe(comfy)
        session.prepare()
        comfy.post("/higgs_tts/listen", {"client": comfy.client, "on": args.listen})
        until = time.monotonic() + args.seconds
        while len(session.left) < args.rounds and time.monotonic() < until:
            session.round()
    except (AssertionError, OSError) as error:
        row |= {"crashes": 1, "error": f"{type(error).__name__}: {error}"[:2000]}
    finally:
        comfy.stop()
    row |= session.summary()
    row["warnings"] = sorted(session.warnings | suspects(comfy.log, quiet_until))
    if args.logs:
        name = re.sub(r"\W+", "-", flags).strip("-") or "defaults"
        shutil.copy(comfy.log, pathlib.Path(args.logs, f"comfyui-{name}.log"))
    return row


def _describe(comfy: Comfy) -> dict:
    stats = comfy.get("/system_stats")
    return {
        "version": stats["system"]["comfyui_version"],
        "device": stats["devices"][0]["name"],
        "cards": len(stats["devices"]),
        "dynamic_vram": comfy.get("/higgs_bench")["dynamic_vram"],
    }


class Session:
    """The rounds in one server and their results."""

    def __init__(self, comfy: Comfy, args):
        self._comfy, self._args = comfy, args
        self._queued = 0
        self._before: int | None = None
        self.used: list[int] = []  # bytes more than before, with the engine open
        self.left: list[int] = []  # the same after unloading
        self.audio: dict[tuple, set[tuple]] = {}  # by setting of LoRAs
        self.rivals: set[str] = set()
        self.pressure = {"evictions": 0, "trims": 0, "untouched": 0}
        self.warnings: set[str] = set()

    def prepare(self):
        """Set the baseline: a card with little free memory, on which the rival has run once."""
        inputs = {"room": self._args.rival + SLACK, "rival": self._args.rival}
        outcome = self._comfy.run({"1": {"class_type": "HiggsBenchPrepare", "inputs": inputs, "_meta": {"title": "-"}}})
        self.rivals.add(outcome.text("HiggsBenchPrepare"))
        self._comfy.post("/free", BUTTONS[1])
        self._before = self._free_when_unloaded()

    def round(self):
        """Queue, measure, unload, measure."""
        number = len(self.left)
        kind = {2: "rival" if self._args.rival else None, 4: "nudge"}.get(number % 5)
        began = time.monotonic()
        for loras in SETTINGS if self._args.loras else ((),):
            self._queue(kind, loras)
        self.used.append(self._before - self._comfy.get("/higgs_bench")["free"])
        self._comfy.post("/free", BUTTONS[number % 2])
        self.left.append(self._before - self._free_when_unloaded())
        told = {"round": number, "kind": kind, "used": self.used[-1], "left": self.left[-1]}
        told |= {"audio": list(map(len, self.audio.values())), "seconds": round(time.monotonic() - began, 2)}
        print(json.dumps(told), file=sys.stderr, flush=True)

    def _queue(self, kind: str | None, loras: tuple[tuple[str, float], ...] = ()):
        """Queue one prompt. With a `kind` of pressure, it speaks twice, with the pressure in between."""
        self._queued += 1
        prompt = read_workflow(
            "speak", 50, HiggsTTSSpeak=self._speech(), HiggsTTSLoadModel={"device": self._args.device}
        )
        for number, (name, strength) in enumerate(loras, 40):
            given = {"model": prompt["2"]["inputs"]["model"], "name": name, "strength": strength}
            prompt[str(number)] = {"class_type": "HiggsTTSLoadLoRA", "inputs": given, "_meta": {"title": "-"}}
            prompt["2"]["inputs"]["model"] = [str(number), 0]
        outputs = {"audio": ["2", 0], "info": ["2", 1]}
        if kind:
            again = dict(prompt["2"]["inputs"], text=["5", 0])
            wanted = {"audio": ["2", 0], "text": prompt["2"]["inputs"]["text"], "kind": kind, "rival": self._args.rival}
            prompt["5"] = {"class_type": "HiggsBenchPressure", "inputs": wanted, "_meta": {"title": "-"}}
            prompt["6"] = {"class_type": "HiggsTTSSpeak", "inputs": again, "_meta": {"title": "-"}}
            outputs |= {"audio_2": ["6", 0], "info_2": ["6", 1]}
        prompt["7"] = {"class_type": "HiggsBenchResult", "inputs": outputs, "_meta": {"title": "-"}}
        outcome = self._comfy.run(prompt)
        told = json.loads(outcome.text("HiggsBenchResult"))
        self.audio.setdefault(loras, set()).update(zip(told["audio"], told["samples"], strict=True))
        self.warnings |= set(told["warnings"])
        if kind:
            self._note_pressure(json.loads(outcome.text("HiggsBenchPressure")))

    def _speech(self) -> dict:
        """Return inputs of Higgs Speak. One changes no sound, but makes ComfyUI run the node again."""
        if self._args.device == "auto":
            return {"chunk_seconds": 60 + self._queued / 100}
        return {"chunk_seconds": 3, "retries": 0, "text": SENTENCES + " " * self._queued}

    def _note_pressure(self, seen: dict):
        self.rivals |= {seen["rival"]} if "rival" in seen else set()
        before, after = sum(seen["before"]), sum(seen["after"])
        self.pressure["untouched" if after == before else "trims" if after else "evictions"] += 1

    def _free_when_unloaded(self) -> int:
        """Return the free bytes once nothing is loaded and four readings agree: ComfyUI cleans up for a while."""
        deadline, looks = time.monotonic() + WAIT, []
        while len(looks) < 4 or len(set(looks[-4:])) > 1:
            seen = self._comfy.get("/higgs_bench")
            assert time.monotonic() < deadline, f"ComfyUI does not come to rest: {seen}"
            looks = [*looks, seen["free"]] if seen["registered"] == 0 else []
            time.sleep(0.12)
        # Only now: this probe goes through all objects, and so keeps them alive meanwhile.
        state = self._comfy.get("/higgs_probe")
        assert state["open"] == 0, f"unloaded, and an engine is open: {state}"
        return looks[-1]

    def summary(self) -> dict:
        left = self.left or [0]
        return {
            "rounds": len(self.left),
            "held_bytes": self.used[1] if len(self.used) > 1 else None,
            "bytes_left_first": left[0],
            "bytes_growth": left[-1] - left[min(1, len(left) - 1)],
            "same_audio": all(len(heard) == 1 for heard in self.audio.values()),
            **({"loras": self._compared()} if self._args.loras else {}),
            "same_rival": len(self.rivals) == 1,
            **self.pressure,
        }

    def _compared(self) -> dict:
        """Return the swaps, the number of settings that sound different, and if strength 0 sounds like no LoRA."""
        plain, silent = (self.audio.get(key) for key in SETTINGS[:3:2])
        return {
            "swaps": self._queued,
            "sounds": len({min(heard) for heard in self.audio.values()}),
            "zero_is_none": plain is not None and plain == silent,
        }


if __name__ == "__main__":
    main()

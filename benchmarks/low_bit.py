"""Savings and costs of 8 and 4 bit weights on a GPU: memory by the driver, time of a step and of a batch, opening.

    python benchmarks/low_bit.py --out benchmarks/results/low_bit.json

Random weights in the published shapes. Each row is a process of its own, whose memory this one reads from the driver.
`--squeeze` fills the card's memory down to that of a small card, and repeats typical use. The result file keeps rows
of the same GPU that this run does not measure. Prints one JSON line last. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from common import DEVICE, GB, ROOT, card, earlier, free_bytes, put, write_shapes
from speaking import TWENTY_WORDS, clip, first_chunk

RESULT = ROOT / "benchmarks" / "results" / "low_bit.json"
CONTEXT, FRAMES = 4096, 2000
BATCHES = (8, 32, 64)
STEP_CONTEXT = 500
SQUEEZE = {"int8": 8 * GB, "int4": 6 * GB}  # bytes left on the card, including a process's context
SQUEEZED_FRAMES = 2000  # 80 s
ROUNDS = 5


def main():
    """Measure every family in every format, a process each."""
    args = _arguments()
    if args.worker:
        WORKERS[args.worker](args)
        return
    result = earlier(args.out, card(), {"rows": [], "squeezed": []})
    with tempfile.TemporaryDirectory() as folder:
        for family in args.families.split(","):
            made = write_shapes(pathlib.Path(folder, family), family, args.layers, whole_codec=True)
            for weights in args.weights.split(","):
                if not args.squeeze:
                    _put(result, "rows", {"family": family, "weights": weights} | _measured("row", made, weights))
                elif weights in SQUEEZE:
                    with _taken(SQUEEZE[weights]):
                        row = _measured("squeezed", made, weights)
                    _put(result, "squeezed", {"family": family, "weights": weights} | row)
                args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default="v3,v2")
    parser.add_argument("--weights", default="bf16,int8,int4")
    parser.add_argument("--squeeze", action="store_true", help="with little memory left, instead of the rows")
    parser.add_argument("--layers", type=int, help="fewer than published, for a trial of the script itself")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    parser.add_argument("--worker", choices=WORKERS)
    parser.add_argument("--folder")
    return parser.parse_args()


def _put(result: dict, name: str, row: dict):
    row |= {"commit": result["commit"]}
    print(row, file=sys.stderr, flush=True)
    result[name] = put(result[name], row, ("family", "weights"))


@contextlib.contextmanager
def _taken(left: int):
    """Allocate the card's memory except `left` bytes."""
    import torch

    hog = torch.empty(free_bytes() - left, dtype=torch.uint8, device=DEVICE)
    yield
    del hog
    torch.cuda.empty_cache()


def _measured(worker: str, folder: pathlib.Path, weights: str) -> dict:
    """Return a worker's own figures, and its peak GPU memory above its idle context.

    Of the host's memory, the peak while it opens, without the page cache.
    """
    import torch

    torch.zeros(1, device=DEVICE)
    command = [sys.executable, __file__, "--worker", worker, "--folder", str(folder), "--weights", weights]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    least, most, ended = [free_bytes()], [0], threading.Event()

    def watch():
        while not ended.wait(0.02):
            least[0] = min(least[0], torch.cuda.mem_get_info()[0])
            most[0] = max(most[0], _host_bytes(child.pid))

    figures, idle, idle_host = {}, 0, 0
    for line in child.stdout:
        kind, _, text = line.partition(" ")
        if kind == "idle":
            idle = least[0] = free_bytes()
            idle_host = _host_bytes(child.pid)
            threading.Thread(target=watch, daemon=True).start()
        elif kind == "opened":
            figures["gib_host_peak"] = round((most[0] - idle_host) / GB, 2)
        elif kind == "spoken":
            figures["gib_over_context"] = round((idle - free_bytes()) / GB, 2)
        elif kind == "peak":
            figures["gib_peak"] = round((idle - least[0]) / GB, 2)
        elif kind == "closed":
            figures.setdefault("gib_left", []).append(round((idle - free_bytes()) / GB, 3))
        elif kind == "figures":
            figures |= json.loads(text)
        child.stdin.write("\n")
        child.stdin.flush()
    ended.set()
    return figures | ({} if child.wait() == 0 else {"crashed": child.returncode})


def _host_bytes(pid: int) -> int:
    """Return a process's memory that is not mapped from files."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return 0


def _tell(kind: str, text: str = ""):
    """Send a message to `_measured`, which answers after measuring."""
    print(kind, text, flush=True)
    sys.stdin.readline()


def _row(args):
    """Measure opening and 2,000 frames, then the times of a step, of batches and of the first sound."""
    import torch

    from engine import Engine, EngineConfig, SamplingParams
    from engine.tools.bench import Row, read_rate, step_bytes, time_step

    torch.zeros(1, device=DEVICE)
    _tell("idle")
    began = time.perf_counter()
    with Engine(EngineConfig(args.folder, device=DEVICE, dtype=args.weights, context=CONTEXT)) as engine:
        figures = {"load_s": round(time.perf_counter() - began, 2)}
        _tell("opened")
        engine.speak(TWENTY_WORDS, params=SamplingParams(max_frames=FRAMES, chunk_seconds=0, retries=0))
        _tell("spoken")
        _tell("peak")
        figures["first_sound_ms"] = first_chunk(engine, None)[0]
        with torch.inference_mode():
            loaded, rate = engine.loaded, read_rate(torch.device(DEVICE))
            ms = time_step(loaded.runner(), STEP_CONTEXT)
            row = Row("", engine.family, "", 1, STEP_CONTEXT, ms, 1000 * step_bytes(loaded.talker, STEP_CONTEXT) / rate)
            figures |= {key: row.as_dict()[key] for key in ("ms_per_step", "floor_ms", "frames_per_s")}
            figures["how"] = loaded.runner().describe()
            for count in BATCHES:
                with loaded.runner_for(count, 1024) as runner:
                    row = Row("", engine.family, "", count, STEP_CONTEXT, time_step(runner, STEP_CONTEXT), 0)
                    figures[f"batch_{count}"] = round(row.audio_s_per_s, 1)
    _tell("figures", json.dumps(figures))


def _squeezed(args):
    """Open, speak for 80 s, eight chunks together, clone from a clip, close; ROUNDS times, with the same audio."""
    import torch

    from engine import Engine, EngineConfig, SamplingParams

    torch.zeros(1, device=DEVICE)
    _tell("idle")
    heard = []
    for _ in range(ROUNDS):
        with Engine(EngineConfig(args.folder, device=DEVICE, dtype=args.weights, context=CONTEXT)) as engine:
            long = engine.speak(
                TWENTY_WORDS, params=SamplingParams(max_frames=SQUEEZED_FRAMES, chunk_seconds=0, retries=0)
            )
            scene = engine.speak(
                " ".join([TWENTY_WORDS] * 8), params=SamplingParams(max_frames=250, chunk_seconds=8, retries=0)
            )
            voice = engine.encode_voice(clip(10), 24000, transcript="What the clip says, in about these words.")
            clone = engine.speak(TWENTY_WORDS, voice, SamplingParams(max_frames=250, retries=0))
            chunks, how = scene.chunks, scene.how
            sound = b"".join(speech.wav.numpy().tobytes() for speech in (long, scene, clone))
            heard.append(hashlib.sha256(sound).hexdigest())
            if len(heard) == 1:
                _tell("peak")
        del long, scene, clone, voice, engine
        torch.cuda.empty_cache()
        torchs = {"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()}
        print(f"round {len(heard)}: bytes that torch still holds: {torchs}", file=sys.stderr, flush=True)
        _tell("closed")
    _tell("figures", json.dumps({"same_audio": len(set(heard)) == 1, "chunks": chunks, "how": how}))


WORKERS = {"row": _row, "squeezed": _squeezed}

if __name__ == "__main__":
    main()

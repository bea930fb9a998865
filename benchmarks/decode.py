"""The decode step against its floor, its peers and fp32, the first sound, the cost of length. Needs a CUDA GPU.

A run may be split: `--only` picks sections, and other results in the file stay if they are of the same GPU. Random
weights in the published shapes. Prints one JSON line last, with ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import tempfile
import time

import common
from agreement import agreement
from common import DEVICE, ROOT, card, in_process
from speaking import first_sound, length

RESULT = ROOT / "benchmarks" / "results" / "decode.json"
CONTEXTS = (100, 500, 1000, 2000)
BATCHES = (8, 32, 64)
MEAN_CONTEXT = 500
PEER_SECONDS = 200  # limit for a peer
PEERS = {
    "eager": {"v3": "transformers eager, Qwen3", "v2": "transformers eager, Llama of the same widths"},
    "compiled": {"v3": "transformers compiled, Qwen3", "v2": "transformers compiled, Llama of the same widths"},
}


def main():
    """Run the chosen sections and write them into the result file."""
    args = _arguments()
    result = earlier(args.base if args.base.is_file() else args.out)
    for name in args.only.split(","):
        began = time.perf_counter()
        SECTIONS[name](args, result)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")  # after each section, since a later one may fail
    print(json.dumps(ratios(result)))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="steps,peers,first_sound,length,agreement", help="sections, with commas")
    parser.add_argument("--families", default="v3,v2", help="of steps, peers and agreement")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    parser.add_argument("--base", type=pathlib.Path, default=RESULT, help="earlier results to go on from")
    parser.add_argument("--minutes", default="1,10,60", help="of narration")
    parser.add_argument("--layers", type=int, help="fewer than published, for a trial of the script itself")
    return parser.parse_args()


def earlier(path: pathlib.Path) -> dict:
    """Return results to continue from."""
    return common.earlier(path, card(), {"read_tb_s": None, "rows": [], "first_sound_ms": {}, "length": []})


def put(result: dict, row: dict):
    """Replace the row of the same measurement, or add it."""
    keys = ("who", "family", "dtype", "batch", "context", "slots")
    result["rows"] = common.put(result["rows"], row, keys)


def steps(args, result: dict):
    """Time our step: one row at every context and both cache sizes, batches, and torch's ops in place of the kernel."""
    import torch

    rates = _rates(result)
    plans = [
        ("ours", "auto", 8192, CONTEXTS, BATCHES),
        ("ours", "auto", 1024, (100, MEAN_CONTEXT), ()),
        ("torch ops", "torch", 1024, (MEAN_CONTEXT,), (32,)),
    ]
    for family in args.families.split(","):
        for who, kernels, slots, contexts, batches in plans:
            with torch.inference_mode(), _hollow(family, args.layers, slots, kernels) as loaded:
                for context in contexts:
                    put(result, _row(who, loaded, loaded.runner(), context, rates) | {"slots": slots})
                for batch in batches:
                    with loaded.runner_for(batch, 1024) as runner:
                        put(result, _row(who, loaded, runner, MEAN_CONTEXT, rates) | {"slots": 1024})


@contextlib.contextmanager
def _hollow(family: str, layers: int | None, slots: int, kernels: str):
    """Yield an open model of published shape with random weights."""
    from engine import Engine, EngineConfig
    from engine.tools.bench import opened
    from engine.tools.published import write_hollow

    with tempfile.TemporaryDirectory() as folder:
        write_hollow(pathlib.Path(folder), family, layers)
        with opened(Engine(EngineConfig(folder, device=DEVICE, context=slots, kernels=kernels)), hollow=True) as held:
            yield held


def _row(who: str, loaded, runner, context: int, rates: dict) -> dict:
    from engine.tools.bench import Row, step_bytes, time_step

    state = runner.state
    ms = time_step(runner, context)
    talker, config, rows = loaded.talker, loaded.talker.config, state.batch
    weights, size = step_bytes(talker, 0), step_bytes(talker, context, rows)
    attention = 4 * config.layers * config.heads * config.head_dim * context
    flop = rows * (2 * weights // talker.dtype.itemsize + attention)
    dtype = str(talker.dtype).removeprefix("torch.")
    row = Row(who, config.family, dtype, rows, context, ms, 1000 * size / rates["read"], runner.describe())
    print(row, flush=True)
    compute = {"gflop": round(flop / 1e9, 1), "compute_floor_ms": round(1000 * flop / rates["multiply"], 4)}
    return row.as_dict() | {"gb": round(size / 1e9, 3)} | compute


def _rates(result: dict) -> dict:
    """Measure the read rate in bytes per second, and the FLOPS of a large bf16 matrix product."""
    import torch

    from engine.tools.bench import read_rate

    read = read_rate(torch.device(DEVICE))
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for index in range(13):
        if index == 3:
            began.record()
        a @ b
    ended.record()
    ended.synchronize()
    multiply = 2 * 8192**3 * 10 / (began.elapsed_time(ended) / 1000)
    result |= {"read_tb_s": round(read / 1e12, 3), "multiply_tflop_s": round(multiply / 1e12)}
    return {"read": read, "multiply": multiply}


def peers(args, result: dict):
    """Time what users would run instead, in a process each. A failed one is a row that says so."""
    read = _rates(result)["read"]
    for family in args.families.split(","):
        ours = _find(result, "ours", family, 1, MEAN_CONTEXT)
        if ours is None:
            raise SystemExit("Run the section steps first: the peers' floor is of the same bytes.")
        for peer, names in PEERS.items():
            arguments = [peer, family, "--context", str(MEAN_CONTEXT)]
            arguments += ["--layers", str(args.layers)] if args.layers else []
            done = in_process(str(ROOT / "benchmarks" / "peers.py"), arguments, "native", PEER_SECONDS)
            row = peer_row(names[family], family, 1e12 * ours["gb"] / read, done)
            print(row, flush=True)
            put(result, row | {"slots": 1024 if peer == "compiled" else None, "gb": ours["gb"]})


def peer_row(who: str, family: str, floor: float, done: dict) -> dict:
    from engine.tools.bench import Row

    if done["crashes"]:
        why = f"did not run (exit {done['exit']}): {'; '.join(done['error']) or 'no message'}"
        what = {"who": who, "family": family, "dtype": "bfloat16", "batch": 1, "context": MEAN_CONTEXT}
        return what | {"ms_per_step": None, "floor_ms": round(floor, 4), "error": why}
    how = f"transformers {done['transformers']}"
    return Row(who, family, "bfloat16", 1, MEAN_CONTEXT, done["ms_per_step"], floor, how).as_dict()


def _find(result: dict, who: str, family: str, batch: int, context: int, slots: int | None = None) -> dict | None:
    """Return the newest timed row of a measurement. Without `slots`, the one with the smallest cache."""
    found = [
        row
        for row in result["rows"]
        if (row["who"], row["family"], row["batch"], row["context"]) == (who, family, batch, context)
        and row["ms_per_step"]
        and slots in (None, row["slots"])
    ]
    return min(found, key=lambda row: row["slots"] or 0) if found else None


def ratios(result: dict) -> dict:
    """Return ratios between the measurements."""
    said = {name: result[name] for name in ("gpu", "read_tb_s", "first_sound_ms")}
    for family in ("v3", "v2"):
        ours = _find(result, "ours", family, 1, MEAN_CONTEXT)
        if ours is None:
            continue
        said[family] = one = {name: ours[name] for name in ("ms_per_step", "percent_of_floor", "frames_per_s")}
        others = {"torch_ops": "torch ops"} | {peer: names[family] for peer, names in PEERS.items()}
        for name, who in others.items():
            row = _find(result, who, family, 1, MEAN_CONTEXT)
            one[f"{name}_times_ours"] = round(row["ms_per_step"] / ours["ms_per_step"], 2) if row else None
        far, near = (_find(result, "ours", family, 1, context, 8192) for context in (2000, 100))
        if far and near:
            bytes_alone = far["floor_ms"] - near["floor_ms"]
            one["context_2000_to_100"] = round((far["ms_per_step"] - bytes_alone) / near["ms_per_step"], 3)
        large = _find(result, "ours", family, 1, MEAN_CONTEXT, 8192)
        if large and ours["slots"] != 8192:
            one["cache_8192_to_1024"] = round(large["ms_per_step"] / ours["ms_per_step"], 3)
        batches = {batch: _find(result, "ours", family, batch, MEAN_CONTEXT) for batch in BATCHES}
        one["audio_s_per_s"] = {str(batch): row["audio_s_per_s"] for batch, row in batches.items() if row}
    said["length_times_real_time"] = {
        str(row["minutes"]): round(60 * row["minutes"] / row["seconds"], 1) for row in result["length"]
    }
    return said


SECTIONS = {"steps": steps, "peers": peers, "first_sound": first_sound, "length": length, "agreement": agreement}

if __name__ == "__main__":
    main()

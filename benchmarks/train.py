"""Training steps of v3's shape with random weights: ours, captured, against transformers with PEFT, in one run.

    python benchmarks/train.py [--write] [--steps 20] [--layers N]

bf16 weights, rank 16 on all seven matrices, recomputation by layer, AdamW. Writes results/train.json: milliseconds a
step, and GiB at most, of ours in bf16, int8 and int4. Each row is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import time

import torch
from common import DEVICE, ROOT, card, in_process

RESULT = ROOT / "benchmarks" / "results" / "train.json"
SHAPES = ((1, 768), (4, 768))
RANK, WARM_UPS, TOKENS = 16, 2, 256
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, help="fewer than published, for a trial of the script itself")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worker", nargs=4, metavar=("WHO", "ROWS", "POSITIONS", "WEIGHTS"))
    parser.add_argument("--device", default=DEVICE)
    args = parser.parse_args()
    if args.worker:
        who, rows, positions, weights = args.worker
        work = {"ours": ours, "eager": ours, "peft": theirs}[who]
        print(json.dumps(work(args, int(rows), int(positions), weights, who)))
        return
    result: dict = card() | {
        "rank": RANK,
        "layers": args.layers or 36,
        "recompute": True,
        "steps": [],
        "memory_gib": {},
    }
    for rows, positions in SHAPES:
        for who, weights in (("ours", "bf16"), ("eager", "bf16"), ("peft", "bf16"), ("ours", "int8"), ("ours", "int4")):
            given = [*(["--layers", str(args.layers)] if args.layers else []), "--steps", str(args.steps)]
            row = in_process(__file__, [*given, "--worker", who, str(rows), str(positions), weights], "native")
            row = {"who": who, "batch": rows, "positions": positions, "weights": weights} | row
            print(json.dumps(row), flush=True)
            result["steps"].append(row)
            if (who, rows) == ("ours", 1):
                result["memory_gib"][weights] = row.get("peak_gib")
    if args.write:
        others = json.loads(RESULT.read_text(encoding="utf-8"))  # small cards and voices, which were measured elsewhere
        RESULT.write_text(json.dumps(others | result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(result))


def ours(args: argparse.Namespace, rows: int, positions: int, weights: str, who: str) -> dict:
    from engine import Engine, EngineConfig, TrainingNetwork
    from engine.tools.published import fill, write_hollow

    is_gpu = args.device.startswith("cuda")
    with tempfile.TemporaryDirectory() as folder:
        write_hollow(pathlib.Path(folder), "v3", args.layers)
        runner = "eager" if who == "eager" else "auto"
        engine = Engine(EngineConfig(folder, device=args.device, dtype=weights, runner=runner))
        group = [random_row(positions, torch.Generator().manual_seed(row)) for row in range(rows)]
        given = engine.checkpoint, engine.config, engine.device, engine.dtype, range(TOKENS), RANK, 2.0 * RANK
        with TrainingNetwork(*given) as network:
            with torch.no_grad():
                fill(network.talker)
            network.start(0)
            held = torch.cuda.memory_allocated() if is_gpu else 0
            if is_gpu:
                torch.cuda.reset_peak_memory_stats()
            times = []
            for step in range(1, args.steps + WARM_UPS + 1):
                began = time.perf_counter()
                network.learn([group], 1e-5, step)  # waits for the losses
                times.append(1000 * (time.perf_counter() - began))
            return {
                "ms": round(statistics.median(times[WARM_UPS:]), 2),
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if is_gpu else 0,
                "held_gib": round(held / 2**30, 2),
                "note": network.note,
            }


def random_row(positions: int, generator: torch.Generator):
    """Return a row of random codes, a tenth of it text."""
    from engine import IGNORED, TrainingRow

    is_code = torch.arange(positions) >= positions // 10
    codes = torch.randint(0, 1024, (positions, 8), generator=generator)
    tokens = torch.randint(0, TOKENS, (positions,), generator=generator)
    return TrainingRow(tokens, codes, is_code, codes.roll(-1, 0).masked_fill(~is_code[:, None], IGNORED))


def theirs(args: argparse.Namespace, rows: int, positions: int, weights: str, who: str) -> dict:
    """Time transformers' Qwen3 with PEFT's LoRA, its code embedding and head as ours."""
    import peft
    import transformers
    from transformers import Qwen3Config, Qwen3Model

    from engine.tools.published import PUBLISHED

    shape = PUBLISHED["v3"] | {"vocab_size": 400, "num_hidden_layers": args.layers or 36}
    is_gpu = args.device.startswith("cuda")
    with torch.device(args.device):
        config = Qwen3Config(**shape, attn_implementation="sdpa", use_cache=False, dtype="bfloat16")
        model = Qwen3Model(config).to(torch.bfloat16)
        codes_embedding = (
            torch.randn(8 * 1026, shape["hidden_size"], dtype=torch.bfloat16) * shape["hidden_size"] ** -0.5
        )
        codes = torch.randint(0, 1024, (rows, positions, 8))
        offsets = torch.arange(8) * 1026
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=MODULES)).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, betas=(0.9, 0.95))
    x, targets = codes_embedding[codes + offsets].sum(2), codes.roll(-1, 1).flatten()
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(args.steps + WARM_UPS):
        began = time.perf_counter()
        hidden = model(inputs_embeds=x).last_hidden_state
        scores = (hidden @ codes_embedding.t()).view(-1, 1026).float()
        loss = torch.nn.functional.cross_entropy(scores, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        times.append(1000 * (time.perf_counter() - began))
    return {
        "ms": round(statistics.median(times[WARM_UPS:]), 2),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if is_gpu else 0,
        "peft": peft.__version__,
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    main()

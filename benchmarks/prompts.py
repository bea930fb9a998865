"""Open questions of captured prefill: cuBLAS's bits at a fixed number of rows, times of chunks, old against new."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import torch

from engine.checkpoint.talker_layout import make_plan
from engine.codes import BOC
from engine.decode import prompts
from engine.decode.kernels import prompt as prompt_kernels
from engine.decode.state import DecodeState
from engine.memory import PrivatePool
from engine.sequence import Sequence
from engine.talker import build_talker
from engine.talker.config import ModelConfig, RopeConfig
from engine.talker.weight import FORMATS, SCRATCH, is_layer_matrix, scratch_bytes

SHAPES = {
    "v3": dict(hidden=2560, heads=32, intermediate=9728, norm_eps=1e-6, rope=RopeConfig(1e6), layers=36),
    "v2": dict(
        hidden=3072, heads=24, intermediate=8192, norm_eps=1e-5, rope=RopeConfig(5e5, 32.0, 0.125, 0.5, 1024), layers=28
    ),
}
CUDA = torch.device("cuda", 0)
RESULT: dict = {}


def config_of(family, layers=None):
    values = SHAPES[family] | ({"layers": layers} if layers else {})
    return ModelConfig(family=family, layout=family, kv_heads=8, head_dim=128, text_vocab=400, **values)


def talker_of(family, weights="", dtype=torch.bfloat16, layers=None, context=2048):
    config = config_of(family, layers)
    plan = make_plan(config, [], tied=family == "v3")
    g, tensors, largest = torch.Generator("cuda").manual_seed(0), {}, 0
    for name in plan.parts:
        shape = plan.shape(name)
        made = torch.randn(shape, generator=g, device="cuda", dtype=torch.bfloat16)
        if len(shape) > 1:
            made *= shape[-1] ** -0.5
        if weights and is_layer_matrix(name, shape):
            format = FORMATS[weights]
            largest = max(largest, scratch_bytes(shape, torch.bfloat16))
            width = format.row_bytes(shape[1]) // format.dtype.itemsize
            tensors[name] = torch.empty(shape[0], width, dtype=format.dtype, device="cuda")
            format.quantize(made, tensors[name])
            continue
        tensors[name] = made.to("cpu" if name == "embed_text" else "cuda", dtype)
    if plan.tied:
        tensors["head_codes"] = tensors["embed_codes"]
    if largest:
        tensors[SCRATCH] = torch.empty(largest, dtype=torch.uint8, device="cuda")
    return build_talker(config, tensors, context)


def sequence_of(config, seed, text, frames, tail):
    g = torch.Generator().manual_seed(seed)
    columns = torch.randint(0, 1024, (frames, 8), generator=g)
    ids = torch.randint(0, 400, (text + frames + tail,), generator=g).tolist()
    audio = ((text, columns),) if frames else ()
    if config.family == "v2":
        audio, ids = (*audio, (len(ids), torch.full((1, 8), BOC))), [*ids, 0]
    return Sequence(ids, audio)


def graph_of(work, stream, times=1):
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(times):
            work()
    return graph


def device_ms(work, repeat=15):
    found = []
    for _ in range(3):
        work()
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return statistics.median(found)


def host_ms(work, repeat=15):
    found = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - began))
    torch.cuda.synchronize()
    return statistics.median(found)


def launches(work):
    try:
        from torch.profiler import ProfilerActivity, profile

        work()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            work()
            torch.cuda.synchronize()
        calls, kernels = {}, {}
        for event in seen.key_averages():
            if event.key.startswith("cu") and any(word in event.key for word in ("Launch", "Memcpy", "Memset")):
                calls[event.key] = event.count
            if event.device_time_total and not event.key.startswith(("aten", "cu", "ProfilerStep")):
                kernels[event.key[:70]] = (event.count, round(event.self_device_time_total / 1000, 3))
        top = sorted(kernels.items(), key=lambda one: -one[1][1])[:14]
        return calls, top
    except Exception as error:  # a trial's own: a machine without counters
        return {"failed": str(error)[:100]}, []


def products(family, stream):
    """Bits and microseconds of cuBLAS's products at every number of rows."""
    config = config_of(family)
    q = (config.heads + 16) * 128
    shapes = {
        "qkv": (q, config.hidden),
        "out": (config.hidden, config.heads * 128),
        "gate_up": (2 * config.intermediate, config.hidden),
        "down": (config.hidden, config.intermediate),
        "head": (8208, config.hidden),
    }
    sizes = (16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 640)
    print(f"\n{family}: us of a product, [rows whose bits depend on their place], =512: same bits as at 512 rows")
    print("rows     " + "".join(f"{name:>24}" for name in shapes))
    table = {}
    for rows in sizes:
        line = f"{rows:5d}    "
        for name, (features, width) in shapes.items():
            copies = max(2, min(12, (220 << 20) // (features * width * 2)))
            weights = [
                torch.randn(features, width, device=CUDA, dtype=torch.bfloat16) * width**-0.5 for _ in range(copies)
            ]
            x = torch.randn(640, width, device=CUDA, dtype=torch.bfloat16)
            out = torch.empty(640, features, device=CUDA, dtype=torch.bfloat16)

            def one(x, weight, count=rows):
                torch.mm(x[:count], weight.t(), out=out[:count])
                return out[:count].clone()

            same = x[:1].expand(rows, -1).contiguous()
            plain = one(x, weights[0])
            places = int((one(same, weights[0]) != plain[:1]).any(1).sum())
            wrong = 0
            for place in {0, 1, rows // 2, rows - 2, rows - 1}:
                other = torch.randn(rows, width, device=CUDA, dtype=torch.bfloat16)
                other[place] = x[0]
                wrong += not torch.equal(one(other, weights[0])[place], plain[0])
            as_512 = torch.equal(one(x, weights[0], 512)[: min(rows, 512)], plain[:512])

            def all_of_them():
                for weight in weights:
                    torch.mm(x[:rows], weight.t(), out=out[:rows])

            graph = graph_of(all_of_them, stream, 3)
            us = 1000 * device_ms(graph.replay, 7) / copies / 3
            graph.reset()
            line += f"{us:9.1f} [{places},{wrong}]{' =512' if as_512 else '     '}".rjust(24)
            table[f"{rows} {name}"] = [round(us, 1), places, wrong, as_512]
            del weights
        print(line, flush=True)
    RESULT[f"products {family}"] = table


class New:
    """Chunks as the engine will launch them."""

    def __init__(self, talker, state):
        self.talker, self.state = talker, state
        before = torch.cuda.memory_allocated()
        began = time.perf_counter()
        self.kernel = prompt_kernels.PromptKernel(talker)
        torch.cuda.synchronize()
        print(
            f"kernel made in {time.perf_counter() - began:.2f} s, scratch {(torch.cuda.memory_allocated() - before) >> 20} MiB"
        )
        self.graphs = {}

    def chunk(self, pieces):
        code = sum(piece.num_codes() for piece in pieces)
        text = sum(piece.stop - piece.start for piece in pieces) - code
        config = self.talker.config
        made = prompts.Chunk(config, self.kernel.layout, prompts.size_of(config, text, code), pieces)
        made.address(self.state.cache.keys, self.state.cache.values, self.state.logits)
        return made

    def send(self, chunk):
        scratch = self.kernel.scratch
        words = torch.empty(chunk.words.shape, dtype=torch.int32, pin_memory=True).copy_(chunk.words)
        scratch["chunk"].copy_(words, non_blocking=True)
        if chunk.ids:
            text = torch.empty(len(chunk.ids), self.talker.config.hidden, dtype=torch.bfloat16, pin_memory=True)
            torch.index_select(self.talker.embed_text, 0, torch.tensor(chunk.ids), out=text)
            scratch["text"][: len(chunk.ids)].copy_(text, non_blocking=True)

    def put(self, pieces, graphs=True):
        chunk = self.chunk(pieces)
        self.send(chunk)
        if graphs and chunk.size in self.graphs:
            self.graphs[chunk.size].replay()
        else:
            self.kernel.run(chunk.size)

    def capture(self, size, stream):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        began = time.perf_counter()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.kernel.run(size)
        stream.synchronize()
        warm = time.perf_counter()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.kernel.run(size)
        made = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        self.graphs[size] = graph
        used = (free - torch.cuda.mem_get_info()[0]) / (1 << 20)
        return [round(1000 * part, 1) for part in (warm - began, made - warm, time.perf_counter() - made)] + [
            round(used, 1)
        ]


def relative(ours, theirs):
    return round(float((ours.float() - theirs.float()).norm() / theirs.float().norm()), 5)


def whole(sequence, row=0):
    return [prompts.Piece(sequence, row, 0, len(sequence))]


def same_bits(new, family):
    """A sequence alone, behind another, and between two, as one piece and as two."""
    config, state = new.talker.config, new.state
    mine = sequence_of(config, 5, 20, 60, 30)
    found = {}
    for name, before, after, cut in (
        ("alone", 0, 0, None),
        ("again", 0, 0, None),
        ("row 2 of others", 30, 30, None),
        ("shifted", 47, 3, None),
        ("eager", 30, 30, None),
        ("cut", 0, 0, 41),
    ):
        others = [sequence_of(config, 6, 0, 0, before)] if before else []
        later = [sequence_of(config, 7, 0, 0, after)] if after else []
        for cache in (state.cache.keys, state.cache.values, state.logits):
            cache.fill_(0.25)
        size = prompts.Size(256, 0) if family == "v3" else prompts.Size(256, 64)
        rows = [(0, one) for one in others] + [(1, mine)] + [(2, one) for one in later]
        together = [[prompts.Piece(one, row, 0, len(one)) for row, one in rows]]
        if cut:
            together = [[prompts.Piece(mine, 1, 0, cut)], [prompts.Piece(mine, 1, cut, len(mine))]]
        for pieces in together:
            made = prompts.Chunk(config, new.kernel.layout, size, pieces)
            made.address(state.cache.keys, state.cache.values, state.logits)
            new.send(made)
            if name == "eager" or size not in new.graphs:
                new.kernel.run(size)
            else:
                new.graphs[size].replay()
        torch.cuda.synchronize()
        n = len(mine)
        found[name] = (
            state.logits[1].clone(),
            state.cache.keys[:, 1, :, :n].clone(),
            state.cache.values[:, 1, :, :n].clone(),
        )
    for name, values in found.items():
        equal = [torch.equal(a, b) for a, b in zip(values, found["alone"])]
        print(f"  bits as alone, {name}: {equal}; finite {bool(values[0].isfinite().all())}")
    RESULT[f"bits {family} {new.kernel._weights}"] = {
        n: [torch.equal(a, b) for a, b in zip(v, found["alone"])] for n, v in found.items()
    }


def trial(family, weights, stream, full):
    print(f"\n=== {family} {weights or 'bf16'}", flush=True)
    torch.cuda.empty_cache()
    talker = talker_of(family, weights)
    config = talker.config
    state = DecodeState(config, 3, 1024, CUDA, torch.bfloat16)
    mine = sequence_of(config, 1, 30, 250, 60 if family == "v3" else 59)
    keys, values = state.cache.keys[:, 0], state.cache.values[:, 0]
    old = lambda: talker.prefill(mine.ids, mine.audio, keys, values)
    expected = old().clone()
    old_keys = state.cache.keys[:, 0, :, : len(mine)].clone()
    calls, _ = launches(old)
    row = {"positions": len(mine), "old_host_ms": host_ms(old), "old_device_ms": device_ms(old), "old_calls": calls}
    print(
        f"old, {len(mine)} positions: host {row['old_host_ms']:.2f} ms, device {row['old_device_ms']:.2f} ms, {calls}"
    )
    new = New(talker, state)
    state.logits.fill_(float("nan"))
    new.put(whole(mine))
    torch.cuda.synchronize()
    print(
        f"new against old: logits {relative(state.logits[0].flatten(), expected)}, keys {relative(state.cache.keys[:, 0, :, : len(mine)], old_keys)}, first layer's keys {relative(state.cache.keys[0, 0, :, : len(mine)], old_keys[0])}"
    )
    sizes = [prompts.Size(n, 0) for n in prompt_kernels.SIZES]
    if family == "v2":
        sizes = [
            prompts.Size(64, 0),
            prompts.Size(64, 64),
            prompts.Size(128, 64),
            prompts.Size(128, 256),
            prompts.Size(256, 64),
            prompts.Size(64, 256),
        ]
    if not full:
        sizes = [size for size in sizes if size.places in (64, 384)]
    for size in sizes:
        made = new.capture(size, stream)
        ms = device_ms(new.graphs[size].replay)
        eager = host_ms(lambda: new.kernel.run(size), 5)
        row[str(tuple(size))] = [round(ms, 3), round(eager, 2), *made]
        print(
            f"  {tuple(size)}: device {ms:.3f} ms, eager host {eager:.2f} ms; warm, capture, replay ms, MiB: {made}",
            flush=True,
        )
    put = lambda: new.put(whole(mine))
    calls, top = launches(put)
    row |= {"new_host_ms": host_ms(put), "new_device_ms": device_ms(put), "new_calls": calls, "top": top}
    print(f"new: host {row['new_host_ms']:.3f} ms, device {row['new_device_ms']:.2f} ms, {calls}")
    for name, (count, ms) in top:
        print(f"    {ms:8.3f} ms {count:4d} x {name}")
    far = sequence_of(config, 2, 0, 0, 1024 if family == "v3" else 1023)
    new.put([prompts.Piece(far, 0, 684, 1024)])
    torch.cuda.synchronize()
    size = prompts.size_of(config, 340, 0)
    if size in new.graphs:
        row["far_device_ms"] = device_ms(new.graphs[size].replay)
        print(
            f"positions 684 to 1024: device {row['far_device_ms']:.3f} ms; finite {bool(state.logits[0].isfinite().all())}"
        )
    same_bits(new, family)
    RESULT[f"{family} {weights or 'bf16'}"] = row
    for graph in new.graphs.values():
        graph.reset()
    if not weights and full:
        new.put(whole(mine), graphs=False)
        torch.cuda.synchronize()
        ours, layers = state.logits[0].flatten().clone(), state.cache.keys[:, 0, :, : len(mine)].float()
        new.kernel.close()
        del new, state, talker
        wide = talker_of(family, dtype=torch.float32)
        cache = torch.zeros(2, config.layers, 8, len(mine), 128, device=CUDA)
        exact = wide.prefill(mine.ids, mine.audio, cache[0], cache[1])
        print(
            f"against fp32: new {relative(ours, exact)}, old {relative(expected, exact)}; keys new {relative(layers, cache[0])}, old {relative(old_keys, cache[0])}"
        )
        return
    new.kernel.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="products,v3,v3 int8,v3 int4,v2,v2 int8")
    args = parser.parse_args()
    began = time.perf_counter()
    print(torch.cuda.get_device_name(0), torch.__version__)
    with torch.inference_mode():
        stream = PrivatePool(CUDA).capture_stream()
        a = torch.randn(8192, 8192, device=CUDA, dtype=torch.bfloat16)
        print(f"8192 cubed: {2 * 8192**3 / device_ms(lambda: a @ a) / 1e9:.0f} TFLOP/s")
        for part in args.only.split(","):
            try:
                if part == "products":
                    for family in ("v3", "v2"):
                        products(family, stream)
                else:
                    family, _, weights = part.partition(" ")
                    trial(family, weights, stream, full=not weights)
            except Exception as error:  # the other parts are wanted all the same
                import traceback

                traceback.print_exc()
                print(f"{part} FAILED: {error}")
            print(f"-- {part}: {time.perf_counter() - began:.0f} s", flush=True)
            out = os.environ.get("OUT")
            if out:
                (pathlib.Path(out) / "prompts.json").write_text(json.dumps(RESULT, indent=1, default=str))


if __name__ == "__main__":
    main()

"""Mock-up of the decode step for one row, without products: today's exchanges against those of thread-block clusters.

    python benchmarks/clusters.py [--pairs 5] [--out benchmarks/results/exchange.json]

The weights of Higgs TTS 3 (7.3 GB) stream as in the real kernel, in 132 blocks with today's five exchanges a layer, in
clusters with two across the device and the rest inside a cluster, and with none. A scheme's figure is the median of its
launches, which alternate with the others'. `resident`: clusters that fit on the device at once. `graph`: whether a
cooperative launch of clusters can be captured and replayed. The last line of output is JSON. Needs compute capability
9.0 or newer, and 9 GB.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import pathlib
import statistics

from common import ROOT, card

TILE, LAYERS, WARPS = 2560, 36, 16
LAYER_TILES = 2 * (4096 * 2 + 2048 + 3 * 9728)
SCHEMES = ("none", "today", "keys twice", "keys handed over")  # as in clusters.cu
COOPERATIVE, CLUSTER_DIMENSION = 2, 4  # CU_LAUNCH_ATTRIBUTE_...
DYNAMIC_SHARED, NON_PORTABLE = 8, 14  # CU_FUNC_ATTRIBUTE_...


class Args(ctypes.Structure):
    """`Args` of clusters.cu."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("weights", "words", "arrivals", "stalled", "errors", "sink")]
    _fields_ += [(name, ctypes.c_int) for name in ("layers", "scheme", "streams")]


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint)]
    _fields_ += [("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


class Mock:
    """The mock-up for a grid of `blocks`, in clusters of `cluster` (1: none). prefetch: tiles in flight per warp."""

    def __init__(self, buffers: dict, blocks: int, cluster: int, prefetch: int = 2):
        import torch

        from engine.cuda.nvrtc import compile_cubin

        self.driver, self.buffers, self.shared = ctypes.CDLL("libcuda.so.1"), buffers, WARPS * (prefetch + 1) * TILE
        self.blocks, self.cluster = blocks, cluster
        source = pathlib.Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
        major, minor = torch.cuda.get_device_capability()
        values = {"BLOCKS": blocks, "CLUSTER": cluster, "PREFETCH": prefetch}
        cubin = compile_cubin(source, f"{major}{minor}", tuple(f"-D{name}={value}" for name, value in values.items()))
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.driver.cuModuleLoadData(ctypes.byref(module), cubin))
        self.check(self.driver.cuModuleGetFunction(ctypes.byref(self.function), module, b"mock_step"))
        self.check(self.driver.cuFuncSetAttribute(self.function, DYNAMIC_SHARED, self.shared))
        if cluster > 8:
            self.check(self.driver.cuFuncSetAttribute(self.function, NON_PORTABLE, 1))

    def check(self, error: int) -> None:
        """Raise RuntimeError if the driver reports an error."""
        if error:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(error, ctypes.byref(text))
            raise RuntimeError(text.value.decode() if text.value else f"error {error}")

    def config(self) -> Config:
        """Return the launch's configuration, on the current stream."""
        import torch

        attributes = (Attribute * 2)()
        attributes[0].id, attributes[0].value[0] = COOPERATIVE, 1
        attributes[1].id = CLUSTER_DIMENSION
        attributes[1].value[:3] = (self.cluster, 1, 1)
        stream, count = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), 2 if self.cluster > 1 else 1
        return Config((self.blocks, 1, 1), (WARPS * 32, 1, 1), self.shared, stream, attributes, count)

    def resident(self) -> int:
        """Return how many clusters the device holds at once."""
        count = ctypes.c_int()
        config = self.config()
        self.check(self.driver.cuOccupancyMaxActiveClusters(ctypes.byref(count), self.function, ctypes.byref(config)))
        return count.value

    def launch(self, scheme: str, streams: bool = True) -> None:
        """Launch a step. Words and counts must be zero."""
        pointers = {name: tensor.data_ptr() for name, tensor in self.buffers.items()}
        args = Args(**pointers, layers=LAYERS, scheme=SCHEMES.index(scheme), streams=streams)
        arguments, config = (ctypes.c_void_p * 1)(ctypes.addressof(args)), self.config()
        self.check(self.driver.cuLaunchKernelEx(ctypes.byref(config), self.function, arguments, None))

    def reset(self) -> None:
        """Zero what the blocks exchange."""
        for name in ("words", "arrivals"):
            self.buffers[name].zero_()

    def milliseconds(self, scheme: str, streams: bool = True) -> float:
        """Return the time of a step on the device."""
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.reset()
        begin.record()
        self.launch(scheme, streams)
        end.record()
        end.synchronize()
        if self.buffers["stalled"].item() or self.buffers["errors"].item():
            raise RuntimeError(f"{scheme}: blocks waited in vain, or received other values")
        return begin.elapsed_time(end)

    def in_a_graph(self) -> str:
        """Capture and replay a launch. Returns "works" or the driver's error."""
        import torch

        try:
            self.reset()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.launch("keys twice", streams=False)
            graph.replay()
            torch.cuda.synchronize()
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return "works" if not self.buffers["errors"].item() else "other values"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="launches of each scheme")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "benchmarks" / "results" / "exchange.json")
    given = parser.parse_args()
    import torch

    words = {"words": 1 << 18, "arrivals": 1 << 10, "stalled": 1, "errors": 1, "sink": 1}
    buffers = {name: torch.zeros(count, dtype=torch.int32, device="cuda") for name, count in words.items()}
    buffers["weights"] = torch.zeros(LAYERS * LAYER_TILES * TILE, dtype=torch.uint8, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    result = card() | {"sms": sms, "gb": round(buffers["weights"].nbytes / 1e9, 3), "clusters": {}}
    for size in (8, 16):
        try:
            result["clusters"][size] = Mock(buffers, 128, size).resident()
        except RuntimeError as error:
            result["clusters"][size] = str(error)
    result["graph"] = Mock(buffers, 128, 8).in_a_graph()
    result["steps"] = steps(buffers, sms, given.pairs)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def steps(buffers: dict, sms: int, pairs: int) -> list[dict]:
    """Return the figures of every scheme and grid, in milliseconds of a step."""
    cases = [(sms, 1, 2, scheme, streams) for scheme in ("none", "today") for streams in (True, False)]
    cases += [(blocks, 1, 2, "none", True) for blocks in (128, 120, 112, 96)] + [(128, 8, 2, "none", True)]
    cases += [(128, 8, prefetch, scheme, True) for prefetch in (2, 3) for scheme in SCHEMES[2:]]
    cases += [(128, 8, 2, scheme, False) for scheme in SCHEMES[2:]] + [(128, 16, 2, "keys handed over", True)]
    mocks = {case: Mock(buffers, *case[:3]) for case in cases}
    keys = ("blocks", "cluster", "prefetch", "scheme", "streams")
    rows = {case: dict(zip(keys, case, strict=True)) for case in cases}
    times: dict[tuple, list[float]] = {case: [] for case in cases}
    for round_ in range(pairs + 1):
        for case, mock in mocks.items():
            if "error" in rows[case]:
                continue
            try:
                took = mock.milliseconds(*case[3:])
            except RuntimeError as error:
                rows[case]["error"] = str(error)
            else:
                times[case] += [took] if round_ else []  # the first is a warm-up
    return [
        row | {"ms": round(statistics.median(times[case]), 4)} if times[case] else row for case, row in rows.items()
    ]


if __name__ == "__main__":
    main()

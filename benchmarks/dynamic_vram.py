"""Capture under memory pressure from ComfyUI's Dynamic VRAM: an allocating step against ours.

An allocation inside a capture makes comfy-aimdo evict pages, which synchronises, and that is forbidden in a capture.
Our step allocates nothing. Prints one JSON line. Each case runs in its own process, because one of them ends it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile

from common import GB, DynamicVram, card, in_process, write_shapes


def main():
    """Run both steps under both allocators."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", choices=("allocating", "ours"))
    parser.add_argument("--folder")
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(capture(args.folder, args.worker == "allocating")))
        return
    print(json.dumps({**card(), "capture_under_dynamic_vram": cases()}))


def cases() -> list[dict]:
    """Return one row for each step and allocator."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_shapes(pathlib.Path(folder), "v3", 3)
        for allocator in ("native", "cudaMallocAsync"):
            for step in ("allocating", "ours"):
                row = in_process(__file__, ["--worker", step, "--folder", folder], allocator)
                rows.append({"allocator": allocator, "step": step, **row})
    return rows


def capture(folder: str, allocating: bool) -> dict:
    """Open an engine, fill the card, capture, replay, have pages evicted, replay again."""
    room = DynamicVram()
    import torch

    from engine import Engine, EngineConfig, SamplingParams

    torch.zeros(1, device="cuda")
    engine = Engine(EngineConfig(model=folder, device="cuda:0", context=1024, runner="graph"))
    params = SamplingParams(max_frames=50, seed=2)
    engine.open()
    expected = engine.speak("Under pressure.", params=params)
    runner = engine.loaded.runner()
    step, held = runner.step, []

    def greedy_step():
        """Take more than is left, in the capture alone."""
        if torch.cuda.is_current_stream_capturing():
            held.extend(torch.empty(512 << 20, dtype=torch.uint8, device="cuda").fill_(1) for _ in range(8))
        step()

    if allocating:
        runner.step = greedy_step
    with torch.inference_mode():
        room.fill(left=300 << 20)
        before = room.pages.loaded_size()
        runner.capture(engine.loaded.pool.capture_stream())
    said = engine.speak("Under pressure.", params=params)
    hog = torch.empty(3 * GB, dtype=torch.uint8, device="cuda").fill_(3)
    again = engine.speak("Under pressure.", params=params)
    result = {
        "captured": True,
        "pages_gb_before": round(before / GB, 2),
        "pages_gb_after": round(room.pages.loaded_size() / GB, 2),
        "same_audio": torch.equal(said.wav, expected.wav) and torch.equal(again.wav, expected.wav),
    }
    del hog
    engine.close()
    return result


if __name__ == "__main__":
    main()

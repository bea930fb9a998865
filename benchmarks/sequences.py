"""The host's time for one sequence: its sentences, prompt, codes, judgement and joining, without the model's.

    python benchmarks/sequences.py [--sequences 192] [--rows 64] [--seconds 10]

The embedded model's steps and codec are replaced by random codes and sound, whose own time is taken off; one thread's
processor time on a CPU. Each caller asks for a text of twenty words and listens. On a GPU the launches come on top.
The row goes into `sequence_host_ms` of results/host.json. Prints it as the last line.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from common import ROOT, put

sys.path.insert(0, str(ROOT))
RESULT = ROOT / "benchmarks" / "results" / "host.json"


class Free:
    """Calls whose time is taken off."""

    def __init__(self):
        self.seconds = 0.0

    def wrap(self, work):
        """Return `work`, counted."""

        def counted(*args, **kwargs):
            began = time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - began

        return counted


def main() -> None:
    """Measure, and put the row into the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=192)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each answer")
    given = parser.parse_args()
    from serve import where

    milliseconds = measured(given.sequences, given.rows, round(25 * given.seconds))
    row = where("cpu") | {"rows": given.rows, "seconds": given.seconds, "ms": round(milliseconds, 2)}
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    result["sequence_host_ms"] = put(result.get("sequence_host_ms", []), row, ("rows", "seconds"))
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(row))


def measured(count: int, rows: int, frames: int) -> float:
    """Return milliseconds a sequence."""
    import torch
    from callers import text_of

    from engine import EMBEDDED, Engine, EngineConfig, Listener, SamplingParams, Turn
    from engine.engines import loaded_model
    from engine.speech.decoder import Stage
    from engine.speech.drive import Drive
    from engine.speech.request import SpeechInput

    loaded_model.CPU_BATCH, free = rows, Free()
    replace_model(free)
    params, words = SamplingParams(max_frames=frames, retries=0), random.Random(0)
    engine, stage = Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024)), Stage(rows, 1024)
    with engine, torch.inference_mode(), engine.decoding() as decoder, decoder.session(stage) as session:
        drive, ended, took = Drive(session), 0, 0.0
        for measures in (False, True):
            free.seconds, began = 0.0, time.thread_time()
            for _ in range(count if measures else rows):
                what = SpeechInput((Turn("", text_of(words)),), {}, params, "")
                request = engine.request(what, Listener(on_audio=len))
                drive.add(request, (sequences for _, sequences in request.stages()))
            for finished in drive:
                for request, error in finished:
                    assert error is None and request.result().frames == frames
                    ended += measures
            took = time.thread_time() - began - free.seconds
    assert ended == count
    return 1000 * took / count


def replace_model(free: Free) -> None:
    """Replace what the device does by random codes and sound."""
    import torch

    from engine.codec.model import CodecDecoder
    from engine.decode.model_runner import ModelRunner
    from engine.talker import Talker

    sound = 0.1 * torch.randn(1, 250 * 960, generator=torch.Generator().manual_seed(0))

    def step(runner: ModelRunner):
        delay = runner.state.delay
        delay.output.random_(0, 1024)
        delay.end_on_codebook_0()
        delay.emit()

    ModelRunner.step, Talker.logits = free.wrap(step), free.wrap(Talker.logits)
    Talker.fill = lambda talker, *_: torch.zeros(1, talker.config.hidden)
    CodecDecoder.decode_span = free.wrap(lambda codec, codes, start, stop: sound[:, : (stop - start) * 960].clone())


if __name__ == "__main__":
    main()

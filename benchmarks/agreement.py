"""The error of bf16 against fp32 on the same weights, step by step. A section of decode.py."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import tempfile

from common import DEVICE, Prompts

STEPS = 100
SLOTS = 1024
TEXT = "The ferry leaves at noon, and nobody had told the captain about the storm."


def agreement(args, result: dict):
    """Compare on the shipped checkpoint, which speaks properly, and on the published shapes with random weights."""
    from engine import EMBEDDED
    from engine.tools.published import write_hollow

    result["agreement"] = [compare("shipped checkpoint", str(EMBEDDED), False)]
    for family in args.families.split(","):
        with tempfile.TemporaryDirectory() as folder:
            write_hollow(pathlib.Path(folder), family, args.layers)
            result["agreement"].append(compare(f"{family}, random weights", folder, True))
    for row in result["agreement"]:
        print(row, flush=True)


def compare(who: str, model: str, hollow: bool, device: str = DEVICE, dtypes: tuple = ("bf16", "fp32")) -> dict:
    """Compare two greedy engines over `model`.

    Led: both always get fp32's codes, so that an early difference does not decide the rest. Free: each uses its own.
    """
    import torch

    from engine import Engine, EngineConfig
    from engine.tools.bench import opened

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        engines = [Engine(EngineConfig(model, device=device, context=SLOTS, dtype=name)) for name in dtypes]
        prompt = _prompt(engines[0])
        ours, exact = (stack.enter_context(opened(engine, hollow)) for engine in engines)
        if hollow:
            _share_weights(ours.talker, exact.talker)
        led, free = _led(ours, exact, prompt), _free(ours, exact, prompt)
        return {"who": who, "steps": STEPS, "how": ours.runner().describe()} | led | free


def _prompt(engine):
    """Return the text's prompt, to be decoded greedily up to the last slot."""
    from engine import SamplingParams, Turn

    prompts = Prompts()
    with engine:
        engine.speak_turns([Turn("", TEXT)], params=SamplingParams(temperature=0, max_frames=1), reuse=prompts)
    (prompt,) = prompts.found
    prompt.params = dataclasses.replace(prompt.params, max_frames=SLOTS)
    return prompt


def _share_weights(ours, exact):
    """Copy the bf16 talker's random weights into the fp32 one. Each keeps its own rotary tables and scratch."""
    import torch

    def weights(talker):
        own = [id(tensor) for tensor in (talker.cos, talker.sin, talker.scratch)]
        return [tensor for tensor in talker.tensors() if id(tensor) not in own]

    ours.embed_text.normal_(0, ours.config.hidden**-0.5, generator=torch.Generator().manual_seed(0))
    exact.embed_text.copy_(ours.embed_text)
    for source, target in zip(weights(ours), weights(exact), strict=True):
        target.copy_(source)


def _begin(models, prompt):
    for loaded in models:
        loaded.runner().prefill([(0, prompt)])
        yield loaded.runner()


def _led(ours, exact, prompt) -> dict:
    """Return the worst relative error of a step's logits, and the share of codes on which both agree."""
    runner, other_runner = _begin((ours, exact), prompt)
    state, other, codebook_size = runner.state, other_runner.state, runner.state.config.code_vocab - 2
    worst = same = 0.0
    for _ in range(STEPS):
        error = (state.logits - other.logits).norm() / other.logits.norm()
        worst = max(worst, float(error))
        codes = [one.logits[..., :codebook_size].argmax(-1) for one in (state, other)]
        same += float((codes[0] == codes[1]).float().mean())
        state.logits.copy_(other.logits)
        runner.step()
        other_runner.step()
    return {"worst_relative_error": float(f"{worst:.3g}"), "codes_alike_percent": round(100 * same / STEPS, 2)}


def _free(ours, exact, prompt) -> dict:
    """Yield step outputs until the first that differs."""
    runners = list(_begin((ours, exact), prompt))
    for runner in runners:
        for _ in range(STEPS):
            runner.step()
    delays = [runner.state.delay for runner in runners]
    outputs = [delay.outputs[0, : min(STEPS, int(delay.num_generated[0]))].cpu() for delay in delays]
    length = min(map(len, outputs))
    differs = (outputs[0][:length] != outputs[1][:length]).any(-1).nonzero()
    return {"rows": length, "rows_alike_at_first": int(differs[0]) if len(differs) else length}

"""Train the codec on shards of speech within a given time, optionally resuming a run.

The codec's learning rate follows the clock and is nearly zero when the minutes are over. If the shards have symbols,
a listener teaches the codec to say them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from .bank import Bank, CodedBank
from .codec_model import LATENT, Codec, load, save
from .codec_run import Run, Settings
from .convolutions import fuse_snakes
from .critics import Critics, SpectralLoss
from .listener import Listener, Reader


def begin(settings: Settings, resume: bool) -> Run:
    """Return a new run, or the saved one."""
    torch.manual_seed(settings.seed)
    torch.backends.cudnn.benchmark = True
    if settings.device.startswith("cuda"):
        fuse_snakes()
    device = settings.device
    if settings.fixed_codes:
        bank = CodedBank(settings.data, settings.out, device, settings.voice, settings.focus)
    else:
        bank = Bank(settings.data, device)
    codec = Codec().to(device)
    parts = Critics(), SpectralLoss(), Listener(), Reader(LATENT)
    run = Run(settings, bank, codec, *(part.to(device) for part in parts))
    print(f"codec: {len(run.bank.samples) / 24_000 / 3600:.2f} h of speech, on {device}", flush=True)
    if resume and (settings.out / "model.safetensors").is_file():
        run.before, run.steps = load(run.codec, settings.out)
        run.go_back()
    return run


def train(settings: Settings, resume: bool) -> None:
    """Train until the time is over, saving now and then and at the end."""
    run = begin(settings, resume)
    run.begin = logged = kept = time.time()
    if settings.until:
        settings.minutes = run.before + max(1.0, settings.until - run.begin) / 60
    due = run.minutes + settings.snapshots
    while run.progress < 1.0:
        run.step()
        now = time.time()
        if now - logged < settings.log_seconds:
            continue
        run.report()
        logged = time.time()
        if not run.sound:
            print("codec: the losses are not numbers any more; back to what was last kept", flush=True)
            run.go_back()
        elif now - kept >= settings.save_seconds:
            run.keep()
            kept = time.time()
        if settings.snapshots and run.minutes >= due:
            save(run.codec, settings.out.parent / f"at_{run.minutes:05.2f}", run.minutes, run.steps)
            due += settings.snapshots
    run.report()
    run.keep()


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the shards that speak wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the codec")
    parser.add_argument("--minutes", type=float, default=Settings.minutes)
    parser.add_argument("--until", type=float, default=0.0, help="instead: seconds since 1970 at which all is over")
    parser.add_argument("--batch", type=int, default=Settings.batch)
    parser.add_argument("--frames", type=int, default=Settings.frames)
    parser.add_argument("--rate", type=float, default=Settings.rate)
    parser.add_argument("--critic-frames", type=int, default=Settings.critic_frames)
    parser.add_argument("--critic-share", type=float, default=Settings.critic_share)
    parser.add_argument("--critic-rate", type=float, default=Settings.critic_rate)
    parser.add_argument("--listened", type=float, default=Settings.listened, help="size of the listener's gradient")
    parser.add_argument("--judged", type=float, default=Settings.judged, help="size of the critics' gradient")
    parser.add_argument("--snapshots", type=float, default=0.0, help="minutes between copies that stay")
    parser.add_argument("--log-seconds", type=float, default=Settings.log_seconds)
    parser.add_argument("--fixed-codes", action="store_true", help="with --resume: the decoder alone learns")
    parser.add_argument("--focus", type=float, default=Settings.focus, help="share of --voice, with --fixed-codes")
    parser.add_argument("--voice", default=Settings.voice)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on from what --out holds")
    given = vars(parser.parse_args(arguments))
    resume = given.pop("resume")
    if given["fixed_codes"] and not (resume and (given["out"] / "model.safetensors").is_file()):
        parser.error("--fixed-codes needs --resume and a codec in --out")
    train(Settings(**given), resume)


if __name__ == "__main__":
    main()

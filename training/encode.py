"""Encode shards of speech in batches, with the codec as the engine loads it.

A batch has clips of about one length, with silence after the shorter ones: only the codes at the very end of a clip can
differ from those it gets alone.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from engine.checkpoint.find_codec import open_codec
from engine.codec.model import CodecEncoder, build_encoder
from engine.core.config import FRAME_SAMPLES

from .clips import Clips
from .shards import Utterance, load_shards

_BATCH_FRAMES = 1_500  # frames encoded at once; with 16,000 the process grew to 117 GB
_ROUND = 16  # frames: lengths are rounded up to this, since long clips have hundreds of lengths
_END = 16  # frames whose codes follow what comes after the clip
_CHECKED = 24  # clips that are encoded a second time, alone


@torch.no_grad()
def encode_batch(encoder: CodecEncoder, wav: torch.Tensor) -> torch.Tensor:
    """wav [B, 960 * T] fp32 -> codes int16 [B, T, 8]. For a codec whose semantic half has no effect."""
    acoustic = encoder.acoustic_encoder(wav[:, None]).transpose(1, 2)
    width = encoder.fc.in_features - acoustic.shape[2]
    assert not encoder.fc.weight[:, -width:].any(), "this codec listens to its semantic half"
    return encoder.quantizer.encode(encoder.fc(F.pad(acoustic, (0, width)))).transpose(1, 2).to(torch.int16)


def _batches(utterances: list[Utterance]) -> list[list[int]]:
    """Return indices of utterances with about the same number of frames, as many as fit a batch."""

    def length(i: int) -> int:
        return -(-utterances[i].samples // (_ROUND * FRAME_SAMPLES)) * _ROUND

    batches = []
    for frames, same in itertools.groupby(sorted(range(len(utterances)), key=length), key=length):
        indices, most = list(same), max(1, _BATCH_FRAMES // frames)
        batches += [indices[i : i + most] for i in range(0, len(indices), most)]
    return batches


def whole_frames(samples: torch.Tensor, one: Utterance) -> torch.Tensor:
    """Return the clip, padded to whole frames."""
    return F.pad(samples[one.start : one.start + one.samples], (0, -one.samples % FRAME_SAMPLES))


def encode(data: Sequence[Path], codec: Path, device: str) -> Clips:
    """Encode every utterance in the folders `data` with `codec`."""
    samples, utterances = load_shards(data)
    codes = codes_of(samples.to(device), utterances, codec)
    texts, names = [one.text for one in utterances], [one.speaker for one in utterances]
    return Clips.join(codes, texts, names, [one.words for one in utterances])


def codes_of(samples: torch.Tensor, utterances: list[Utterance], codec: Path) -> list[torch.Tensor]:
    """Return each utterance's codes, int16 [T, 8] on the CPU, computed on the device of `samples`."""
    found = open_codec(codec)
    assert found, f"{codec} holds no codec"
    encoder = build_encoder(found.weights.config, found.weights.read("encoder", str(samples.device)))
    codes: list[torch.Tensor] = [torch.empty(0)] * len(utterances)
    same = total = 0
    for number, batch in enumerate(_batches(utterances)):
        clips = [whole_frames(samples, utterances[i]) for i in batch]
        wav = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True).float() / 32768
        for i, clip, made in zip(batch, clips, encode_batch(encoder, wav).cpu(), strict=True):
            codes[i] = made[: len(clip) // FRAME_SAMPLES].clone()
        if number % 20 == 0 and number < 20 * _CHECKED:
            alone = encoder.encode(clips[0].float() / 32768).cpu()[:-_END]
            same, total = same + int((alone == codes[batch[0]][:-_END]).sum()), total + alone.numel()
    print(f"encode: {same} of {total} codes checked are those of a clip alone", flush=True)
    assert same >= 0.99 * total
    return codes


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders of shards")
    parser.add_argument("--codec", type=Path, required=True, help="folder of the codec")
    parser.add_argument("--out", type=Path, required=True, help="file of the clips")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    torch.backends.cudnn.allow_tf32 = False
    begin = time.time()
    clips = encode(given.data, given.codec, given.device)
    clips.save(given.out)
    hours = len(clips.codes) / 25 / 3600
    print(f"encode: {len(clips)} clips, {hours:.2f} h, in {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""Loudness and files of finished speech, for the nodes that speak."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from comfy_api.latest import io

from ..engine import (
    AFTER,
    AS_IS,
    FRESH_TARGET,
    SAMPLE_RATE,
    SOUND_FILES,
    TARGETS,
    Bed,
    CueParams,
    HiggsError,
    SpeechResult,
    Target,
    Voice,
    check_rate,
    master,
    resample,
)
from .comfy import folders, widgets
from .comfy.audio import at_most_stereo, of_wave, to_clip
from .comfy.saved_sound import save_sound

OFF = "off"
PREFIX = "audio/higgs"


def bed_inputs() -> list[io.Input]:
    """Return music under speech. They come after the inputs of older workflows, which store widgets by position."""
    return [
        io.Audio.Input(
            "bed",
            optional=True,
            tooltip="Music under the speech, from Load Audio. It is repeated to the end of the speech and faded out.",
        ),
        widgets.number(
            CueParams,
            "lower_bed",
            advanced=True,
            tooltip="How far the background is lowered while somebody speaks, in dB. 0 leaves it as it is.",
        ),
    ]


def bed_of(settings: dict) -> tuple[tuple[torch.Tensor, int] | None, float]:
    """Return the connected music [C, n], at most stereo, with its Hz, and the dB by which it is lowered.

    Removes both from a node's settings.
    """
    lower = CueParams(**{name: settings.pop(name) for name in ["lower_bed"] if name in settings}).lower_bed
    if "bed" not in settings:
        return None, lower
    wav, rate = to_clip(settings.pop("bed"), "bed")
    check_rate(rate, "The bed")
    return (at_most_stereo(wav).float().cpu(), rate), lower


def loudness_input(part: str) -> io.Input:
    """The loudness widget. Comes after those of older workflows, which store widgets by position."""
    return io.Combo.Input(
        "loudness",
        options=list(TARGETS),
        default=FRESH_TARGET,
        optional=True,
        tooltip=f"Bring {part} to this loudness, with peaks limited to -1 dB. -19 LUFS suits podcasts in mono, "
        "-16 LUFS in stereo, -23 LUFS television. ACX: -20 dB RMS with peaks below -3 dB, for audiobooks.",
    )


def target_of(loudness: str) -> Target | None:
    """Return what a node's loudness asks for, None for nothing. Raises HiggsError for an unknown choice."""
    return TARGETS[_chosen("loudness", loudness, TARGETS)]


def _chosen(name: str, value: str, choices: Collection[str]) -> str:
    if value not in choices:
        raise HiggsError(f"{name} is {str(value)[:40]!r}. Choose one of: {', '.join(choices)}.")
    return value


def finish_inputs() -> list[io.Input]:
    """Return the widgets. They come after those of older workflows, which store widgets by position."""
    return [
        loudness_input("the result"),
        io.Combo.Input(
            "save_as",
            options=[OFF, *SOUND_FILES],
            default=OFF,
            optional=True,
            tooltip="Save the result in ComfyUI's output folder. flac, mp3 and ogg contain the workflow: drop such a "
            "file onto the canvas to open it.",
        ),
        io.String.Input(
            "filename_prefix",
            default=PREFIX,
            optional=True,
            advanced=True,
            tooltip="Folder and name of saved files, as in Save Audio. %year%, %month%, %day% and so on are replaced, "
            "and a number is added.",
        ),
    ]


@dataclass
class Finish:
    """Finishing of one run's sound. A node's inputs, and its hidden ones; `lines` is for its info output."""

    loudness: str = AS_IS  # in a workflow saved before the input existed
    save_as: str = OFF
    filename_prefix: str = PREFIX
    hidden: object = None
    artist: str = ""
    bed: tuple[torch.Tensor, int] | None = None  # music [C, n] and its Hz
    lower_bed: float = CueParams.lower_bed
    lines: list[str] = field(default_factory=list)
    path: Path | None = None  # the saved file
    result: tuple[torch.Tensor, int] = field(default_factory=lambda: (torch.empty(1, 0), SAMPLE_RATE))  # [C, n], Hz

    @classmethod
    def take(cls, settings: dict, hidden: object = None) -> Finish:
        """Return what a node's settings ask for, and remove it from them.

        Raises HiggsError for an unknown choice, or a name under which nothing could be saved.
        """
        names = ("loudness", "save_as", "filename_prefix")
        finish = cls(**{name: settings.pop(name) for name in names if name in settings}, hidden=hidden)
        target_of(finish.loudness)
        if _chosen("save_as", finish.save_as, (OFF, *SOUND_FILES)) != OFF:
            folders.output_pattern(finish.filename_prefix)
        return finish

    def spoken_by(self, voices: Iterable[Voice | None]) -> None:
        """Name the voices as the artists of a saved file."""
        self.artist = ", ".join(dict.fromkeys(voice.name for voice in voices if voice is not None and voice.name))

    def finish(self, speech: SpeechResult) -> SpeechResult:
        """Complete speech, with the music under it if there is any. Sets `result`; music changes only that."""
        wav, rate = self._over_bed(speech)
        wav = self.complete(wav, rate)
        self.result = wav, rate
        return speech if self.bed else replace(speech, wav=wav[0])

    def _over_bed(self, speech: SpeechResult) -> tuple[torch.Tensor, int]:
        dry = speech.wav.detach().float().cpu()
        if self.bed is None:
            return dry[None], SAMPLE_RATE
        wav, rate = self.bed
        spoken = resample(dry, SAMPLE_RATE, rate)
        spoken = F.pad(spoken, (0, round(AFTER * rate)))
        spans = [(chunk.start / SAMPLE_RATE, chunk.stop / SAMPLE_RATE) for chunk in speech.said]
        return spoken + Bed(wav, rate, spans, len(spoken), self.lower_bed).piece(0, len(spoken)), rate

    def complete(self, wav: torch.Tensor, rate: int) -> torch.Tensor:
        """Return sound [C, n] at the chosen loudness, and save it if the node is to. Raises HiggsError."""
        wav = self._level(wav, rate)
        if self.save_as != OFF:
            tags = {"artist": self.artist} if self.artist else {}
            self.path = save_sound(of_wave(wav, rate), self.filename_prefix, self.save_as, tags, self.hidden)
            self.lines.append(f"Saved: {Path('output', self.path.relative_to(folders.output())).as_posix()}.")
        return wav

    def _level(self, wav: torch.Tensor, rate: int) -> torch.Tensor:
        if (target := target_of(self.loudness)) is None:
            return wav
        wav, mastered = master(wav, rate, target)
        self.lines.append(str(mastered))
        return wav

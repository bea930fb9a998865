"""Loudness and files of finished speech, for the nodes that speak."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from comfy_api.latest import io

from ..engine import AS_IS, FRESH_TARGET, SOUND_FILES, TARGETS, HiggsError, Target, Voice, master
from .comfy import folders
from .comfy.audio import of_wave
from .comfy.saved_sound import save_sound

OFF = "off"
PREFIX = "audio/higgs"


def loudness_input(what: str) -> io.Input:
    """The loudness widget. Comes after those of older workflows, which store widgets by position."""
    return io.Combo.Input(
        "loudness",
        options=list(TARGETS),
        default=FRESH_TARGET,
        optional=True,
        tooltip=f"Bring {what} to this loudness, with peaks limited to -1 dB. -19 LUFS suits podcasts in mono, "
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
    lines: list[str] = field(default_factory=list)
    path: Path | None = None  # the saved file

    @classmethod
    def take(cls, settings: dict, hidden: object = None) -> Finish:
        """Return what a node's settings ask for, and remove it from them. Raises HiggsError for an unknown choice."""
        names = ("loudness", "save_as", "filename_prefix")
        finish = cls(**{name: settings.pop(name) for name in names if name in settings}, hidden=hidden)
        target_of(finish.loudness)
        _chosen("save_as", finish.save_as, (OFF, *SOUND_FILES))
        return finish

    def spoken_by(self, voices: Iterable[Voice | None]) -> None:
        """Name the voices as the artists of a saved file."""
        self.artist = ", ".join(dict.fromkeys(voice.name for voice in voices if voice is not None and voice.name))

    def complete(self, wav: torch.Tensor, rate: int) -> torch.Tensor:
        """Return sound [C, n] at the chosen loudness, and save it if the node is to. Raises HiggsError."""
        wav = self._level(wav, rate)
        if self.save_as != OFF:
            audio = of_wave(wav.detach().float().cpu(), rate)
            tags = {"artist": self.artist} if self.artist else {}
            self.path = save_sound(audio, self.filename_prefix, self.save_as, tags, self.hidden)
            self.lines.append(f"Saved: {Path('output', self.path.relative_to(folders.output())).as_posix()}.")
        return wav

    def _level(self, wav: torch.Tensor, rate: int) -> torch.Tensor:
        if (target := target_of(self.loudness)) is None:
            return wav
        wav, mastered = master(wav, rate, target)
        self.lines.append(str(mastered))
        return wav

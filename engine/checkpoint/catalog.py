"""Published checkpoints for download, each pinned to a revision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Repo:
    """Published repository at a pinned revision. Files on its main branch have been replaced in place before."""

    id: str
    revision: str
    patterns: tuple[str, ...] = ("*.json", "*.safetensors", "LICENSE*")  # files to fetch
    former: tuple[str, ...] = ()  # former or alternative names
    size: int = 0  # approximate bytes of these files


@dataclass(frozen=True)
class Download:
    folder: str  # created under the folder that the user chose
    family: str
    talker: Repo
    codec: Repo | None = None  # None: the codec is inside the talker's file

    @property
    def names(self) -> tuple[str, ...]:
        """Possible folder names: ours, and the last part of each name of the repository."""
        return (self.folder, *(name.rpartition("/")[2] for name in (self.talker.id, *self.talker.former)))

    @property
    def size(self) -> int:
        """Approximate bytes to download."""
        return self.talker.size + (self.codec.size if self.codec else 0)


CODEC_V2 = Repo(
    "bosonai/higgs-audio-v2-tokenizer",
    "9d4988fbd4ad07b4cac3a5fa462741a41810dbec",
    ("config.json", "model.pth", "LICENSE*"),
    former=("eustlb/higgs-audio-v2-tokenizer",),
    size=810_000_000,
)


DOWNLOADS: dict[str, Download] = {
    "Higgs TTS 3 (4B)": Download(
        "higgs-tts-3-4b",
        "v3",
        Repo(
            "bosonai/higgs-tts-3-4b",
            "7556c17e05201fccd9c8cc120bc216dcc7b5d561",
            former=("bosonai/higgs-audio-v3-tts-4b",),
            size=9_320_000_000,
        ),
    ),
    "Higgs Audio v2 (3B)": Download(
        "higgs-audio-v2-generation-3B-base",
        "v2",
        Repo(
            "bosonai/higgs-audio-v2-generation-3B-base",
            "10840182ca4ad5d9d9113b60b9bb3c1ef1ba3f84",
            former=("bosonai/higgs-tts-2-3b-base",),
            size=11_560_000_000,
        ),
        CODEC_V2,
    ),
}

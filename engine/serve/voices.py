"""The voices of a server: the pack's clips, and a folder of saved voices and clips."""

from __future__ import annotations

import re
from pathlib import Path

from ..files.whole_file import file_stamp
from ..voice.clip import BUILT_IN_CLIPS, CLIP_SUFFIXES
from ..voice.voice import Voice
from .calls import STOCK_VOICES, BadCall

_SAVED = ".safetensors"
_MOST_BYTES = 200  # of a name, so that a file can have it
_NAME = re.compile(r"\w[\w .-]{0,63}")


class VoiceFolder:
    """Voices by name: those of the folder, and the pack's, which are there without one.

    A clip's transcript is a .txt file beside it.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._made: dict[Path, tuple[list[int], Voice]] = {}  # with the file's stamp

    def names(self) -> list[str]:
        """Of all there are now."""
        return sorted(self._files())

    def find(self, name: str) -> Path:
        """The file of a voice. Raises BadCall, 404, with the known names."""
        if path := self._files().get(name.casefold()):
            return path
        raise BadCall(
            f"there is no voice {name[:80]!r}. Known voices: default, {', '.join(self.names())}.",
            "voice",
            404,
            "voice_not_found",
        )

    def kept(self, path: Path) -> Voice | None:
        """The voice of a file, if it is a saved one or has been made before and not changed since."""
        stamp, voice = self._made.get(path, (None, None))
        if voice is not None and stamp == file_stamp(path):
            return voice
        if path.suffix == _SAVED:
            self.keep(path, voice := Voice.load(path))
            return voice
        return None

    def keep(self, path: Path, voice: Voice) -> None:
        """Keep the voice that `kept` returns from now on."""
        self._made[path] = file_stamp(path), voice

    def add(self, name: str, voice: Voice) -> str:
        """Saves a voice into the folder -> its name. Raises BadCall for a name that is taken or no name of a file."""
        if self._folder is None:
            raise BadCall("this server has no voice folder. Start it with --voices FOLDER.", "name")
        if not _NAME.fullmatch(name) or name.endswith((".", " ")) or len(name.encode()) > _MOST_BYTES:
            raise BadCall("a voice name may have up to 64 letters, digits, spaces, _ . and -.", "name")
        if name.casefold() in {*self._files(), *STOCK_VOICES}:
            raise BadCall(f"a voice named {name!r} already exists. Choose another name, or delete it.", "name", 409)
        voice.save(self._folder / f"{name}{_SAVED}")
        return name

    def delete(self, name: str) -> None:
        """Removes a saved voice of the folder. Raises BadCall for one that is not there, or a clip."""
        path = self.find(name)
        if path.suffix != _SAVED or path.parent != self._folder:
            raise BadCall(
                f"{name!r} is a clip that was put into the folder by hand. Only saved voices can be deleted.", "name"
            )
        path.unlink()
        self._made.pop(path, None)

    def _files(self) -> dict[str, Path]:
        found = {}
        for folder in filter(None, (BUILT_IN_CLIPS, self._folder)):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if path.suffix.lower() in (_SAVED, *CLIP_SUFFIXES):
                    found[path.stem.casefold()] = path
        return found

"""A server's voices: the pack's clips, and a folder of saved voices and clips."""

from __future__ import annotations

from pathlib import Path

from ..files.file_list import write_errors
from ..files.portable_names import composed, portable_parts
from ..files.whole_file import file_stamp
from ..voice.clip import BUILT_IN_CLIPS, CLIP_SUFFIXES, FILM_SUFFIXES
from ..voice.voice import Voice
from .calls import STOCK_VOICES, BadCall

_SAVED = ".safetensors"
_MOST_LETTERS = 64  # of a name
_NAMED = 20  # voices in an error


class VoiceFolder:
    """Voices by name, from the pack and, if given, a folder.

    A clip's transcript is a .txt file beside it.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._made: dict[Path, tuple[list[int], Voice]] = {}  # with the file's stamp

    def names(self) -> list[str]:
        return sorted(self._files())

    def find(self, name: str) -> Path:
        """Return a voice's file. Raises BadCall (404) that lists some of the known names."""
        files = self._files()
        if path := files.get(_key(name)):
            return path
        names = sorted(files)
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise BadCall(
            f"there is no voice {name[:80]!r}. Known voices: {', '.join(['default', *names[:_NAMED]])}{more}.",
            "voice",
            404,
            "voice_not_found",
        )

    def file_of(self, name: str) -> tuple[Path, Voice | None] | None:
        """Return a voice's file, and the voice if it need not be made. Raises BadCall like `find`.

        None for a stock name that no file has: the model's own voice.
        """
        try:
            path = self.find(name)
        except BadCall:
            if _key(name) in STOCK_VOICES:
                return None
            raise
        return path, self.kept(path)

    def kept(self, path: Path) -> Voice | None:
        """Return a file's voice if it is a saved one, or cached and unchanged since."""
        stamp, voice = self._made.get(path, (None, None))
        if voice is not None and stamp == file_stamp(path):
            return voice
        if path.suffix.lower() == _SAVED:
            self.keep(path, voice := Voice.load(path))
            return voice
        return None

    def keep(self, path: Path, voice: Voice) -> None:
        """Cache a file's voice for `kept`."""
        self._made[path] = file_stamp(path), voice

    def add(self, name: str, voice: Voice) -> str:
        """Save a voice and return its name. Raises BadCall if the name is taken or not valid for a file."""
        if self._folder is None:
            raise BadCall("this server has no voice folder. Start it with --voices FOLDER.", "name")
        parts = portable_parts(name)
        if len(parts) != 1 or len(name := parts[0]) > _MOST_LETTERS:
            raise BadCall("a voice name may have up to 64 letters, and must be one that files can have.", "name")
        if _key(name) in self._files():
            raise BadCall(f"a voice named {name!r} already exists. Choose another name, or delete it.", "name", 409)
        voice.save(self._folder / f"{name}{_SAVED}")
        return name

    def delete(self, name: str) -> None:
        """Delete a saved voice of the folder. Raises BadCall if it is missing or a clip, HiggsError if it is in use."""
        path = self.find(name)
        if path.suffix.lower() != _SAVED or path.parent != self._folder:
            raise BadCall(
                f"{name!r} is a clip that was put into the folder by hand. Only saved voices can be deleted.", "name"
            )
        with write_errors(path):
            path.unlink()
        self._made.pop(path, None)

    def _files(self) -> dict[str, Path]:
        files = {}
        for folder in filter(None, (BUILT_IN_CLIPS, self._folder)):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                is_voice = path.suffix.lower() in (_SAVED, *CLIP_SUFFIXES, *FILM_SUFFIXES)
                if is_voice and not path.name.startswith("._"):  # macOS leaves one beside each file
                    files[_key(path.stem)] = path
        return files


def _key(name: str) -> str:
    return composed(name).casefold()

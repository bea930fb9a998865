"""Download of checkpoints from Hugging Face into a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants, errors
from tqdm.std import tqdm

from ..core.errors import HiggsError
from ..files.file_list import write_errors
from .catalog import DOWNLOADS, Download, Repo
from .discover import CODEC_SUBFOLDER, CONFIG, missing_parts
from .tensor_file import open_folder, open_tensors

_BEGUN = "download.incomplete"  # in the folder until all files are there, also those that loading does not need


def download_checkpoint(
    label: str, target_root: Path | str, on_progress: Callable[[float, str], None] | None = None
) -> Path:
    """Download `DOWNLOADS[label]` into its own folder under `target_root`. Resumes an interrupted download.

    A complete folder is not downloaded again. `on_progress(fraction, text)` is called from the downloading threads;
    an exception in it ends the download.

    Returns the folder. Raises HiggsError if there is no network or no disk space, or if files are missing afterwards.
    """
    if label not in DOWNLOADS:
        raise HiggsError(f"{label!r} is not a known download. Choose one of: {', '.join(DOWNLOADS)}.")
    download = DOWNLOADS[label]
    folder = Path(target_root) / download.folder
    begun = folder / _BEGUN
    if _is_whole(folder, download) and (constants.HF_HUB_OFFLINE or not begun.is_file()):
        return folder
    if constants.HF_HUB_OFFLINE:
        raise HiggsError(
            f"{label} cannot be downloaded: HF_HUB_OFFLINE is set. Unset it, or put {download.talker.id} into {folder}."
        )
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        begun.touch()
    report = _Reporter(download.size, on_progress)
    _fetch(download.talker, folder, report)
    if download.codec:
        _fetch(download.codec, folder / CODEC_SUBFOLDER, report)
    if lacks := missing_parts(folder):
        raise HiggsError(
            f"{folder} is incomplete. {' '.join(lacks)} Start the download again; it resumes where it stopped."
        )
    with write_errors(folder):
        begun.unlink()
    return folder


def download_repo(repo: Repo, folder: Path, on_progress: Callable[[float, str], None] | None = None) -> None:
    """Download one repository into `folder`; see `download_checkpoint`. Raises HiggsError if that fails."""
    if constants.HF_HUB_OFFLINE:
        raise HiggsError(f"{repo.id} cannot be downloaded: HF_HUB_OFFLINE is set. Unset it, or put it into {folder}.")
    _fetch(repo, folder, _Reporter(repo.size, on_progress))


def _is_whole(folder: Path, download: Download) -> bool:
    """True if all files of `download` exist and open. A damaged file must be downloaded again."""
    try:
        if missing_parts(folder):
            return False
        open_folder(folder)
        if download.codec:
            files = [folder / CODEC_SUBFOLDER / name for name in download.codec.patterns if "*" not in name]
            open_tensors([path for path in files if path.name != CONFIG])
            return all(path.is_file() for path in files)
    except HiggsError:
        return False
    return True


def _fetch(repo: Repo, folder: Path, report: _Reporter) -> None:
    # huggingface_hub declares tqdm_class as tqdm.asyncio's, but accepts any. Its HTTPError is requests' or httpx's.
    try:
        huggingface_hub.snapshot_download(  # pyright: ignore[reportCallIssue]
            repo.id,
            revision=repo.revision,
            local_dir=str(folder),
            allow_patterns=list(repo.patterns),
            tqdm_class=report.bar_class(),  # pyright: ignore[reportArgumentType]
        )
    except (OSError, ValueError, RuntimeError, errors.HTTPError) as error:  # pyright: ignore[reportPrivateImportUsage]
        raise HiggsError(
            f"{repo.id} could not be downloaded into {folder} ({error}). "
            "Check the network and the free disk space, then start again: the download resumes where it stopped."
        ) from error


@dataclass
class _Reporter:
    """Sums huggingface_hub's progress bars over the repositories of one download."""

    size: int
    on_progress: Callable[[float, str], None] | None
    bytes_done: int = 0
    files_done: int = 0
    files: int = 0

    def bar_class(self) -> type[tqdm]:
        """Return a tqdm class that reports here. huggingface_hub counts files with it; newer versions also bytes."""
        report = self

        class Bar(tqdm):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                # A disabled bar does not keep its arguments.
                self.counts_bytes = kwargs.get("unit") == "B"
                self.on_the_wire = str(kwargs.get("desc")).startswith("Downloading")  # not yet on disk
                report.files += 0 if self.counts_bytes else kwargs.get("total") or 0

            def __iter__(self):
                with contextlib.closing(self):
                    for item in self.iterable:
                        yield item
                        self.update()

            def update(self, n: float | None = 1) -> bool | None:
                done = int(n or 0)
                shown = super().update(n)
                if not self.counts_bytes:
                    report.files_done += done
                elif not self.on_the_wire:
                    report.bytes_done += done
                report.tell()
                return shown

        return Bar

    def tell(self) -> None:
        """Call `on_progress` with bytes if they are known, else with files."""
        if self.on_progress is None:
            return
        if self.bytes_done:
            size = max(self.size, self.bytes_done)
            self.on_progress(self.bytes_done / size, f"{self.bytes_done / 1e9:.1f} of {size / 1e9:.1f} GB")
        elif self.files:
            self.on_progress(self.files_done / self.files, f"{self.files_done} of {self.files} files")

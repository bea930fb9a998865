"""Every change of a file fails once, and the process ends once at each: prints what each operation leaves, as JSON.

`tests/faults/faults.py writes` and `tests/unit/test_write_faults.py` run it with `write_faults.c` preloaded. Linux
only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import io
import json
import os
import random
import shutil
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
ERRORS = (errno.ENOSPC, errno.EACCES, errno.EIO)
ENDED, REFUSED, DEFECT = 77, 1, 2  # exit codes; the first is the library's


def _import_pack():
    """Import the pack as higgs_tts, and its nodes' folders without ComfyUI."""
    spec = importlib.util.spec_from_file_location(
        "higgs_tts", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    sys.modules["higgs_tts"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("nodes", "nodes/sheet", "nodes/comfy"):
        package = types.ModuleType(f"higgs_tts.{name.replace('/', '.')}")
        package.__path__ = [str(ROOT / name)]
        sys.modules[package.__name__] = package


_import_pack()
torch.set_num_threads(1)

from higgs_tts.engine import (  # noqa: E402
    EMBEDDED,
    BookSettings,
    Engine,
    EngineConfig,
    HiggsError,
    SamplingParams,
    Voice,
    Word,
    mix_speech,
    narrate,
    read_book_text,
    read_cues,
    speak_cues,
)
from higgs_tts.engine.checkpoint.download import download_checkpoint  # noqa: E402
from higgs_tts.engine.cuda import cubin_cache  # noqa: E402
from higgs_tts.engine.tools.arguments import make_parser  # noqa: E402
from higgs_tts.engine.tools.outputs import Outputs  # noqa: E402
from higgs_tts.engine.tools.quantize_folder import quantize_folder  # noqa: E402
from higgs_tts.engine.tools.tiny import write_tiny  # noqa: E402
from higgs_tts.nodes.sheet.files import LineFiles  # noqa: E402
from higgs_tts.tests.hub import hub_of  # noqa: E402


@dataclass(frozen=True)
class Operation:
    """run(folder, version): writes files. starts: an earlier version lies there. visible: ends of files users see."""

    run: Callable[[Path, int], object]
    visible: tuple[str, ...]
    starts: bool = True


def operations(made: Path) -> dict[str, Operation]:
    """Return the operations. made: a folder for a tiny checkpoint."""
    tiny = write_tiny(made / "v3", "v3")
    engine = Engine(EngineConfig(str(tiny), device="cpu", context=512))
    engine.open()
    weights = (".safetensors",)
    params = SamplingParams(seed=2, max_frames=4, retries=0)

    def book(kind: str):
        def run(folder: Path, version: int):
            text = f"# One\n\nIt goes on.\n\n# Two\n\nThe end{' again' * (version - 1)}."
            return narrate(
                engine,
                read_book_text(text, "Book"),
                folder,
                params=params,
                settings=BookSettings(
                    kind=kind, words=engine.words, loudness="-16 LUFS" if kind == "flac" else "as is"
                ),
            )

        return run

    def lines(folder: Path, version: int):
        files = LineFiles(folder)
        wanted = {f"a/{name}.wav": (f"{version}", bytes([version]) * 9000) for name in "xy"}
        files.put({name: one for name, one in wanted.items() if not files.has(name, one[0])}, {})

    def outputs(folder: Path, version: int):
        args = [f"--out={folder / 'a.flac'}", f"--srt-out={folder / 'a.srt'}", f"--codes={folder / 'a.npy'}"]
        args += [f"--words={folder / 'a.json'}", f"--mouth={folder / 'mouth.json'}"]
        given = make_parser().parse_args(["say", "Hi.", *args])
        wav = torch.linspace(-0.5, 0.5, 9000) * version
        Outputs(given).write(wav, lambda: f"{version}", torch.full((2, 8), version), [Word(str(version), 0, 1)])

    def subtitles(folder: Path, version: int):
        args = [f"--out={folder / 'a.flac'}", f"--srt-out={folder / 'a.srt'}"]
        given = make_parser().parse_args(["say", "--srt-in=a.srt", *args])
        outputs = Outputs(given)
        cues = read_cues(f"1\n00:00:01,000 --> 00:00:02,000\nThe end{' again' * version}.").cues
        speech = speak_cues(engine, cues, params=params)
        outputs.write(mix_speech(speech.sounds, speech.seconds), speech.to_srt)

    def download(folder: Path, _: int):
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars
            download_checkpoint("Higgs TTS 3 (4B)", folder)

    return {
        "voice": Operation(lambda folder, v: Voice(torch.full((9, 8), v)).save(folder / "a.st"), (".st",)),
        "lines": Operation(lines, (".wav",)),
        "say": Operation(outputs, (".flac", ".srt", ".npy", ".json")),
        "narrate flac": Operation(book("flac"), (".flac", ".srt", ".words.json")),
        "narrate m4b": Operation(book("m4b"), (".m4b", ".srt", ".words.json")),
        "quantize": Operation(lambda folder, _: quantize_folder(EMBEDDED, folder / "new", "int4"), weights, False),
        "say --srt-in": Operation(subtitles, (".flac", ".srt")),
        "download": Operation(download, (*weights, ".json"), False),
        "cubins": Operation(lambda folder, v: cubin_cache.save("key", bytes([v]) * 9000), (".cubin",)),
    }  # fmt: skip


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, without locks and the unfinished."""
    found = [path for path in folder.rglob("*") if path.is_file() and not {".part", ".cache"} & {*path.parts}]
    found = [path for path in found if not path.name.endswith(".part")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if not path.name.endswith("lock")}


class Trial:
    """An operation in a folder of its own, with the bytes of undisturbed runs."""

    def __init__(self, operation: Operation, place: Path, library: ctypes.CDLL):
        self.operation, self.library = operation, library
        self.folder, self.earlier = place / "folder", place / "earlier"
        self.folder.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(self.folder)
        if operation.starts:
            operation.run(self.folder, 1)
        shutil.copytree(self.folder, self.earlier)
        self.before = files_in(self.folder)
        code, self.points = self.child(0, 0, tell=True)
        assert code == 0 and self.points, "the operation fails undisturbed"
        self.after = files_in(self.folder)

    def child(self, at: int, error: int, tell: bool = False) -> tuple[int, int]:
        """Run the operation in a forked process. Returns (exit code, number of changes if asked for)."""
        ours, theirs = os.pipe()
        if (process := os.fork()) == 0:
            code = 0
            self.library.arm(str(self.folder).encode(), at, error)
            try:
                self.operation.run(self.folder, 2)
            except HiggsError as problem:
                code = REFUSED if len(str(problem)) < 1000 and "\n" not in str(problem) else DEFECT
            except BaseException:
                traceback.print_exc()
                code = DEFECT
            count = self.library.disarm()
            if tell:
                os.write(theirs, str(count).encode())
            os._exit(code)
        os.close(theirs)
        with open(ours) as pipe:
            told = pipe.read()
        _, status = os.waitpid(process, 0)
        return os.waitstatus_to_exitcode(status), int(told or 0)

    def defects(self, at: int, error: int) -> list[str]:
        """Fail the change of a number, and return what is wrong afterwards."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.earlier, self.folder)
        code, _ = self.child(at, error)
        found = [] if code in (0, REFUSED, ENDED) else [f"ends with code {code}"]
        left = files_in(self.folder)
        for name, data in left.items():
            if name.endswith(self.operation.visible) and data not in (self.before.get(name), self.after.get(name)):
                found.append(f"{name} is half written")
        gone = [name for name in self.before.keys() & self.after.keys() if name not in left]
        found += [f"{name} is gone" for name in gone]
        again, _ = self.child(0, 0)
        if again and not (code == 0 and again == REFUSED):  # what is whole already may be refused
            return [*found, f"the next run ends with code {again}"]
        return found + self.wrong()

    def wrong(self) -> list[str]:
        """Return what another run than the undisturbed one has made of the folder."""
        left = files_in(self.folder)
        return [f"another {name} is made" for name, data in self.after.items() if left.get(name) != data]


def main():
    """Try all errors at every change, or one at as many as a number says, and the end of the process at each."""
    library, rows = ctypes.CDLL(os.environ["LD_PRELOAD"]), []
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with tempfile.TemporaryDirectory() as made, hub_of(write_tiny(Path(made) / "hub", "v3")):
        for name, operation in operations(Path(made)).items():
            place = Path(made) / name.replace(" ", "_")
            place.mkdir()
            trial, failing = Trial(operation, place, library), []
            step = -(-trial.points // most) if most else 1
            points = range(1 + random.randrange(step), trial.points + 1, step)
            for at in points:
                for error in (*((random.choice(ERRORS),) if most else ERRORS), 0):
                    why = os.strerror(error) if error else "the process ends"
                    failing += [f"change {at}, {why}: {defect}" for defect in trial.defects(at, error)]
            rows.append({"operation": name, "points": len(points), "of": trial.points, "failing": failing})
            print(f"{name}: {len(points)} of {trial.points} points, {failing}", file=sys.stderr, flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

"""A long book, killed twice and resumed, compared with an uninterrupted run: bytes and peak memory.

    python benchmarks/book.py --minutes 180 --device cuda:0

Speaks with the embedded checkpoint, or with `--model FOLDER`, and one of the pack's voices. Both runs are under way at
the same time, so `seconds` of each is its time beside the other. `peak_mb` is the process's peak host memory,
`gpu_peak_mb` the peak GPU memory of the model and its work. Writes the entry "book" of results/time.json, and
prints it as JSON last.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from common import ROOT, card, commit

from engine import EMBEDDED, Engine, EngineConfig, SamplingParams, estimate_seconds, narrate, read_book, read_clip
from training import corpus

RESULT = ROOT / "benchmarks" / "results" / "time.json"
VOICE = ROOT / "engine" / "voice" / "built_in" / "oliver.flac"
SENTENCES, CHAPTER_MINUTES = 4, 15
KILLED_AT = (1 / 3, 2 / 3)  # of the paragraphs


def main():
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=180, help="of the book, by estimate")
    parser.add_argument("--model", default=str(EMBEDDED))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    parser.add_argument("--worker", type=pathlib.Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--book", type=pathlib.Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(speak(given)))
        return
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        entry = compare(given, pathlib.Path(folder))
    result = json.loads(given.out.read_text()) if given.out.is_file() else {}
    result["book"] = entry
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(entry))


def compare(given: argparse.Namespace, folder: pathlib.Path) -> dict:
    """Make both runs and return the entry."""
    given.book = folder / "book.md"
    given.book.write_text(make_book(given.minutes), encoding="utf-8")
    whole, killed = folder / "whole", folder / "killed"
    paragraphs = sum(len(one.turns) for one in read_book(given.book).chapters)
    running, kills = start(given, whole), []
    for share in KILLED_AT:
        process = start(given, killed)
        while (count := sum(1 for _ in killed.rglob("spoken/*/*.safetensors"))) < share * paragraphs:
            if process.poll() is not None:
                raise SystemExit(f"ended before it was killed: {process.communicate()[1][-2000:]}")
            time.sleep(0.2)
        process.kill()
        process.communicate()
        kills.append({"sequences": count, "chapters": len(list(killed.glob("*.flac")))})
    told = {"resumed": end(start(given, killed)), "uninterrupted": end(running)}
    here = {"device": "CPU", "torch": torch.__version__, "date": str(datetime.date.today()), "commit": commit()}
    return {
        "checkpoint": "embedded" if given.model == str(EMBEDDED) else pathlib.Path(given.model).name,
        "minutes": round(told["uninterrupted"]["minutes"], 1),
        "chapters": told["uninterrupted"]["chapters"],
        "sequences": paragraphs,
        "same_bytes": digests(whole) == digests(killed),
        "files": len(digests(whole)),
        "megabytes": round(sum(path.stat().st_size for path in whole.iterdir() if path.is_file()) / 1e6, 1),
        "killed_at": kills,
        **told,
        **(here if given.device == "cpu" or not torch.cuda.is_available() else card()),
    }


def start(given: argparse.Namespace, folder: pathlib.Path) -> subprocess.Popen:
    """Start a process that speaks the book into a folder."""
    command = [sys.executable, __file__, "--worker", folder, "--book", given.book]
    command += ["--device", given.device, "--model", given.model]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen) -> dict:
    """Wait for a process and return its report."""
    out, errors = process.communicate()
    if process.returncode:
        raise SystemExit(errors[-2000:])
    return json.loads(out.splitlines()[-1])


def speak(given: argparse.Namespace) -> dict:
    """Speak or resume, in the worker process."""
    import resource

    with Engine(EngineConfig(given.model, device=given.device)) as engine:
        voice = engine.encode_voice(*read_clip(VOICE), VOICE.with_suffix(".txt").read_text(encoding="utf-8").strip())
        params = SamplingParams(seed=1, paragraph_gap=0.6)
        report = narrate(engine, read_book(given.book), given.worker, {"": voice}, params)
    return {
        "seconds": round(report.elapsed, 1),
        "minutes": report.seconds / 60,
        "chapters": len(report.files),
        "chapters_made": sum(file.made for file in report.files),
        "sequences_reused": report.reused,
        "spoken_again": len(report.spoken_again),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        **({"gpu_peak_mb": round(report.peak_bytes / 1e6)} if report.peak_bytes else {}),
        "how": report.how,
    }


def make_book(minutes: float) -> str:
    """Return chapters of sentences that the embedded checkpoint has not learned."""
    sentences = [
        " ".join(corpus.TAG.sub(" ", text).split()) for text in corpus.sentences("heldout", round(minutes * 30), seed=7)
    ]
    parts, seconds, chapters = [], 0.0, 0
    for at in range(0, len(sentences), SENTENCES):
        if seconds >= chapters * min(CHAPTER_MINUTES, minutes / 3) * 60:
            chapters += 1
            parts.append(f"# Chapter {chapters}")
        paragraph = " ".join(sentences[at : at + SENTENCES])
        parts.append(paragraph)
        seconds += estimate_seconds(paragraph)
        if seconds >= minutes * 60:
            return "\n\n".join(parts)
    raise SystemExit(f"there are only {seconds / 60:.0f} minutes of text")


def digests(folder: pathlib.Path) -> dict[str, str]:
    """Map files to digests of their bytes: sound, subtitles and the codes of every sequence."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


if __name__ == "__main__":
    main()

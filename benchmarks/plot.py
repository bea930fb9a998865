"""Draw results/decode.json for docs/performance.md: ms a step at batch 1, and how batches scale. Needs matplotlib.

The background is opaque, so that the picture looks the same on light and dark pages.
"""

from __future__ import annotations

import argparse
import json
import pathlib

from decode import MEAN_CONTEXT, PEERS, RESULT

FAMILIES = {"v3": "Higgs TTS 3 (4B)", "v2": "Higgs Audio v2 (3B)"}
INK, PALE, FLOOR = "#24292f", "#8c959f", "#cf222e"
COLOURS = {"ours": "#0969da", "torch ops": "#54aeff", "compiled": "#bf8700", "eager": "#8c959f"}
LABELS = {
    "ours": "this engine",
    "torch ops": "this engine, torch ops only",
    "compiled": "transformers, compiled",
    "eager": "transformers, eager",
}
CUT = 1.5  # a bar this many times longer than the next one is cut, and labelled so


def main():
    """Draw the picture beside the result file, or to --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", nargs="?", type=pathlib.Path, default=RESULT)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    if not args.result.is_file():
        raise SystemExit(f"{args.result} is not there. Run benchmarks/decode.py on a GPU first.")
    out = args.out or args.result.with_suffix(".png")
    draw(json.loads(args.result.read_text()), out)
    print(f"{out}, {out.stat().st_size / 1024:.0f} KB")


def draw(result: dict, out: pathlib.Path):
    """Draw the whole picture into `out`."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("matplotlib is missing, and only this script needs it: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    font = {"font.size": 9, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    with pyplot.rc_context({**font, "axes.edgecolor": PALE, "axes.spines.top": False, "axes.spines.right": False}):
        figure = pyplot.figure(figsize=(10, 4.2), facecolor="white", layout="constrained")
        grid = figure.add_gridspec(len(FAMILIES), 2, width_ratios=(1.25, 1))
        for index, family in enumerate(FAMILIES):
            _bars(figure.add_subplot(grid[index, 0]), result, family)
        _scaling(figure.add_subplot(grid[:, 1]), result)
        versions = f"{result['gpu']}, driver {result['driver']}, torch {result['torch']}, {result['date']}"
        figure.supxlabel(f"{versions}; random weights in the published shapes, bf16", fontsize=7.5, color=INK)
        figure.savefig(out, dpi=120)
        pyplot.close(figure)


def _row(result: dict, who: str, family: str, batch: int) -> dict | None:
    found = [
        row
        for row in result["rows"]
        if (row["who"], row["family"], row["batch"], row["context"]) == (who, family, batch, MEAN_CONTEXT)
    ]
    return min(found, key=lambda row: row.get("slots") or 0) if found else None


def _bars(axes, result: dict, family: str):
    """Draw a bar for each decoder of `family` at batch 1, and the floor."""
    names = {"ours": "ours", "torch ops": "torch ops", **{peer: PEERS[peer][family] for peer in ("compiled", "eager")}}
    rows = {short: row for short, who in names.items() if (row := _row(result, who, family, 1))}
    times = {short: row["ms_per_step"] for short, row in rows.items() if row["ms_per_step"]}
    if not times:
        axes.set_axis_off()
        return
    ordered = sorted(times.values())
    longest = ordered[-1]
    if len(ordered) > 1 and ordered[-1] > CUT * ordered[-2]:
        longest = CUT * ordered[-2]
    for place, (short, row) in enumerate(rows.items()):
        ms = times.get(short)
        axes.barh(place, min(ms or 0, longest), color=COLOURS[short], height=0.66)
        said = f" {ms:.2f} ms, {row['audio_s_per_s']:.1f}x real time" if ms else " did not run"
        said += ", bar cut" if ms and ms > longest else ""
        axes.text(min(ms or 0, longest), place, said, va="center", fontsize=8)
    floor = rows["ours"]["floor_ms"] if "ours" in rows else min(row["floor_ms"] for row in rows.values())
    axes.axvline(floor, color=FLOOR, linestyle="--", linewidth=1.2)
    axes.text(floor, -0.62, f" floor {floor:.2f} ms", color=FLOOR, fontsize=8, va="bottom")
    axes.set_yticks(range(len(rows)), [LABELS[short] for short in rows])
    axes.set_ylim(len(rows) - 0.5, -1.1)
    axes.set_xlim(0, longest * 1.6)
    axes.set_title(f"{FAMILIES[family]}: ms a step (a frame, 40 ms of sound), one line", fontsize=9, loc="left")


def _scaling(axes, result: dict):
    """Draw seconds of audio per second against the batch size, measured and at the floor."""
    for family, style in zip(FAMILIES, ("-", ":"), strict=True):
        batches = sorted({row["batch"] for row in result["rows"] if row["who"] == "ours" and row["family"] == family})
        rows = [row for batch in batches if (row := _row(result, "ours", family, batch)) and row["ms_per_step"]]
        if not rows:
            continue
        sizes = [row["batch"] for row in rows]
        measured = [row["audio_s_per_s"] for row in rows]
        floor = [row["batch"] * 40 / row["floor_ms"] for row in rows]
        axes.plot(sizes, floor, color=FLOOR, linestyle=style, linewidth=1, label=f"floor, {family}")
        axes.plot(sizes, measured, color=COLOURS["ours"], linestyle=style, marker="o", label=f"measured, {family}")
        axes.annotate(
            f"{measured[-1]:.0f}", (sizes[-1], measured[-1]), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_xlabel(f"lines together, {MEAN_CONTEXT} frames of context in the mean")
    axes.set_title("Seconds of speech a second", fontsize=9, loc="left")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=PALE, alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    main()

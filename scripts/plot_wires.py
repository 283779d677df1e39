"""Prints a table of loss against bytes, by wire, and draws it.

usage: plot_wires.py FOLDER PICTURE     FOLDER holds one JSON-lines log of train_gpt per run, WIRE-SEED.jsonl
"""

import sys
from statistics import fmean

import matplotlib

matplotlib.use("Agg")  # no display needed
import matplotlib.pyplot as plt

from plot import runs_in


def name_of(run):
    feedback = run.asked["feedback"]
    return run.asked["wire"] + (f", feedback {feedback:g}" if feedback else "")


def draw(wires, picture):
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25})
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for name, runs in wires.items():
        colour = "#d55e00" if "feedback" in name else "#0072b2"
        axes.plot([run.bytes for run in runs], [run.final for run in runs], "o", color=colour, alpha=0.35, ms=4)
        at = runs[0].bytes, fmean(run.final for run in runs)
        axes.plot(*at, "o", color=colour, ms=6)
        axes.annotate(name, at, xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel="bytes sent by each replica", ylabel="validation loss at the end, bits per byte", xscale="log")
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(unit="B"))
    figure.savefig(picture, dpi=150)


def main(folder, picture):
    wires = runs_in(folder, name_of)
    ordered = dict(sorted(wires.items(), key=lambda item: (-item[1][0].bytes, item[0])))
    most = max(runs[0].bytes for runs in ordered.values())
    print("| wire | validation bits per byte | MB sent per replica | of fp32 |\n|---|---|---|---|")
    for name, runs in ordered.items():
        sent, each = runs[0].bytes, ", ".join(f"{run.final:.3f}" for run in runs)
        print(f"| {name} | {fmean(run.final for run in runs):.3f} ({each}) | {sent / 1e6:.2f} | 1 / {most / sent:.1f} |")
    draw(ordered, picture)
    print(f"drawn: {picture}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

"""Draws what the planner found: utilisation over bandwidth.

usage: plot_planner.py FILE PICTURE     FILE is what bench_planner --json wrote
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display needed
import matplotlib.pyplot as plt

# In the order of the table; colours that remain apart for the colour-blind and in print.
COLOURS = ["#444444", "#d55e00", "#e69f00", "#0072b2"]
STYLES = ["-", "-", "--", "-"]


def first_that_reaches(curve, percent):
    """Index of the first point at or above it; None if there is none."""
    return next((i for i, value in enumerate(curve["percent"]) if value >= percent), None)


def draw(plan, picture):
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25})
    figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
    for curve, colour, style in zip(plan["curves"], COLOURS, STYLES):
        bits = [1e6 * mbit for mbit in curve["mbit"]]
        axes.plot(bits, curve["percent"], style, color=colour, lw=1.8, label=curve["name"])
        reached = first_that_reaches(curve, plan["target_percent"])
        if reached is not None:
            axes.plot(bits[reached], curve["percent"][reached], "o", color=colour, ms=5)
    axes.axhline(plan["target_percent"], ls=":", color="#444444", lw=1)
    axes.axvline(1e6 * plan["mbit"], ls=":", color="#444444", lw=1)
    axes.annotate("this link", (1e6 * plan["mbit"], 101), ha="center", va="bottom", annotation_clip=False)
    axes.set(xscale="log", xlabel="bandwidth", ylabel="compute utilisation, %", ylim=(0, 101))
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(unit="bit/s"))
    axes.legend(frameon=False, loc="center left")
    figure.suptitle(plan["title"], fontsize=9)
    figure.savefig(picture, dpi=150)


def main(file, picture):
    draw(json.loads(Path(file).read_text()), picture)
    print(f"drawn: {picture}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

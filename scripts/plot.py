"""Prints the table of the demo's runs and draws them.

usage: plot.py FOLDER PICTURE     FOLDER holds one JSON-lines log of train_gpt per run, METHOD-SEED.jsonl
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")  # no display needed
import matplotlib.pyplot as plt

# By the names of logs. The order of the table and the legend; colours that remain apart for the colour-blind and in print.
METHODS = {
    "ddp": ("synchronous (ddp)", "#444444", "-"),
    "a": ("A: every 6 steps, 4 bits", "#d55e00", "-"),
    "a-longer": ("A, 10 % more steps", "#e69f00", "-"),
    "b": ("B: every 20 steps, 8 bits", "#0072b2", "-"),
    "solo": ("one replica alone (solo)", "#8a8a8a", "--"),
}


class Run:
    """One log: what was asked, what was measured on the way, what came out."""

    def __init__(self, path):
        lines = defaultdict(list)
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            lines[entry["kind"]].append(entry)
        if not lines["result"]:
            sys.exit(f"plot: {path} has no result: the run did not end")
        self.asked, self.result = lines["run"][0], lines["result"][0]
        self.method = path.stem.rsplit("-", 1)[0]
        self.steps = [e["step"] for e in lines["evaluation"]]
        self.sent = [e["bytes_sent"] for e in lines["evaluation"]]
        self.loss = [e["validation_bits_per_byte"] for e in lines["evaluation"]]
        self.final = self.result["validation_bits_per_byte"]
        self.bytes = self.result["replicas"][0]["bytes_sent"]
        self.socket_bytes = max(r["socket_bytes"] for r in self.result["replicas"])


def table(runs):
    """One row per method: means over the seeds, and the loss of every seed."""
    most = max(run.bytes for group in runs.values() for run in group)
    yield [
        "method",
        "validation bits per byte",
        "per seed",
        "bytes sent per replica",
        "sockets' own count",
        "fewer",
        "wall time",
    ]
    for method, group in runs.items():
        sent = group[0].bytes
        yield [
            METHODS[method][0],
            f"{fmean(run.final for run in group):.4f}",
            " ".join(f"{run.final:.4f}" for run in group) if len(group) > 1 else "",
            f"{sent:,}",
            f"{max(run.socket_bytes for run in group):,}",
            f"{most / sent:.1f}x" if sent else "",
            f"{fmean(run.result['seconds'] for run in group):.1f} s",
        ]


def print_table(rows):
    rows = list(rows)
    columns = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    width = {i: max(len(row[i]) for row in rows) for i in columns}
    for row in rows:
        print("  ".join(row[i].ljust(width[i]) if i == 0 else row[i].rjust(width[i]) for i in columns))


def mean_curve(group, x):
    """Pointwise over the seeds, which were all evaluated at the same steps."""
    return [fmean(v) for v in zip(*(getattr(r, x) for r in group))], [fmean(v) for v in zip(*(r.loss for r in group))]


def draw(runs, picture):
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25})
    figure, (by_step, by_byte) = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    for method, group in runs.items():
        name, colour, style = METHODS[method]
        final = fmean(run.final for run in group)
        steps, loss = mean_curve(group, "steps")
        dots = "o" if len(steps) < 3 else None  # of a short run there is no curve
        by_step.plot(steps, loss, style, color=colour, lw=1.8, marker=dots, label=f"{name}: {final:.3f}")
        if group[0].bytes:
            sent, loss = mean_curve(group, "sent")
            by_byte.plot(sent, loss, style, color=colour, lw=1.8)
            by_byte.plot(sent[-1], loss[-1], "o", color=colour, ms=6)
        else:
            by_byte.axhline(final, ls=style, color=colour, lw=1.8)

    asked = next(iter(runs.values()))[0].asked
    everything = [loss for group in runs.values() for run in group for loss in run.loss]
    low, high = min(everything), max(everything)
    last = max(run.final for group in runs.values() for run in group)
    top = max(low + 0.75 * (high - low), last + 0.1 * (high - low))  # the first steps are all alike
    by_step.set_ylim(low - 0.14 * (high - low), top)
    by_step.set(xlabel="steps of each replica", ylabel="validation loss, bits per byte")
    by_step.legend(frameon=False, title="at the end", alignment="left")
    by_byte.set(xlabel="bytes sent by each replica", xscale="log")
    by_byte.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(unit="B"))
    by_byte.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    mark_saving(by_byte, runs)
    seeds = max(len(group) for group in runs.values())
    figure.suptitle(
        f"A {asked['parameters']:,}-parameter byte GPT on {asked['replicas']} replicas" + (f", mean of {seeds} seeds" if seeds > 1 else ""),
        fontsize=11,
    )
    figure.savefig(picture, dpi=150)


def mark_saving(axes, runs):
    """An arrow from what synchronous training sent to what A sent."""
    if "ddp" not in runs or "a" not in runs:
        return
    most, least = runs["ddp"][0].bytes, runs["a"][0].bytes
    low, high = axes.get_ylim()
    height = low + 0.06 * (high - low)  # below the curves
    axes.annotate("", (least, height), (most, height), arrowprops={"arrowstyle": "->", "color": "#d55e00", "lw": 1.5})
    label = f"{most / least:.0f} times fewer"
    axes.text((least * most) ** 0.5, height, label, ha="center", va="bottom", color="#d55e00")
    for run in (runs["ddp"][0], runs["a"][0]):
        axes.plot([run.bytes] * 2, [run.final, height], ":", color=METHODS[run.method][1], lw=1)


def runs_in(folder, name_of):
    """The runs of each name, seed by seed."""
    found = defaultdict(list)
    for path in sorted(Path(folder).glob("*.jsonl")):
        run = Run(path)
        found[name_of(run)].append(run)
    if not found:
        sys.exit(f"plot: no logs (*.jsonl) in {folder}")
    return found


def main(folder, picture):
    found = runs_in(folder, lambda run: run.method)
    runs = {method: found[method] for method in METHODS if method in found}
    print_table(table(runs))
    draw(runs, picture)
    print(f"drawn: {picture}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

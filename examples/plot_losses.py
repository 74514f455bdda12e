"""Draw the losses of a training run from its log.

python examples/plot_losses.py training.jsonl docs/images
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

WIDTH = 25
"""Steps averaged for a point of a training curve."""

CURVES = {"main": ("next byte (main head)", "#1f5fa8"), "draft_1": ("the byte after it (MTP block)", "#c8571b")}


def main() -> None:
    """Read the log, write loss.png and loss.svg."""
    parser = argparse.ArgumentParser(description="Draw the losses of a training run from its log")
    parser.add_argument("log", type=Path, help="what train_tiny.py wrote with --log")
    parser.add_argument("folder", type=Path, help="where loss.png and loss.svg go")
    options = parser.parse_args()
    log, folder = options.log, options.folder
    entries: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    trained = [entry for entry in entries if "rate" in entry]
    held = [entry for entry in entries if "held_out" in entry]
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    for name, (label, colour) in CURVES.items():
        groups = [trained[start : start + WIDTH] for start in range(0, len(trained) - WIDTH + 1, WIDTH)]
        steps = [group[-1]["step"] for group in groups]
        means = [sum(entry[name] for entry in group) / len(group) for group in groups]
        axes.plot(steps, means, color=colour, alpha=0.45, linewidth=1, label=f"{label}, trained on")
        at, values = [entry["step"] for entry in held], [entry["held_out"][name] for entry in held]
        axes.plot(at, values, color=colour, marker="o", markersize=3.5, linewidth=1.4, label=f"{label}, held out")
        for entry in (entry for entry in entries if "final" in entry):
            axes.plot(entry["step"], entry["final"][name], color=colour, marker="*", markersize=10)
    change = next((b["step"] for a, b in pairwise(trained) if "draft_2" in b and "draft_2" not in a), None)
    if change is not None:
        axes.axvline(change, color="0.6", linestyle=":", linewidth=1)
        axes.text(change, 0.98, " full length", color="0.4", va="top", transform=axes.get_xaxis_transform())
    axes.set(xlabel="step", ylabel="bits per byte", xlim=(0, None))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "builder"
    figure.savefig(folder / "loss.png", dpi=160, metadata={"Software": None})
    figure.savefig(folder / "loss.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()

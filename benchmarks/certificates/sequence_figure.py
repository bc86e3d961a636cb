"""Figure of people forgotten in sequence: share of effective draws, and bound, after each."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.certificates.sequence import Sequence


def draw(sequence: Sequence, path: Path) -> None:
    """Draw the figure. Dotted lines are refreshes; crosses are deletions that got no certificate."""
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    shares, bounds = figure.subplots(2, 1, sharex=True)
    people = [step.person for step in sequence.steps]
    refreshed = [step.person for step in sequence.steps if step.refresh_seconds is not None]
    certified = [step for step in sequence.steps if step.epsilon is not None]
    refused = [step.person for step in sequence.steps if step.epsilon is None]
    shares.plot(people, [step.share for step in sequence.steps], marker=".", color="tab:blue")
    shares.axhline(sequence.floor, color="grey", linewidth=0.8, linestyle="--", label=f"floor: {sequence.floor:g}")
    shares.set(ylabel="effective draws / draws", ylim=(0, 1.02))
    shares.set_title(
        f"{sequence.family}: {len(people)} people one after another, {len(refreshed)} refreshes\n"
        f"{sequence.draws:,} draws of {sequence.parameters:,} parameters, reference: {sequence.reference}",
        fontsize="medium",
    )
    bounds.plot([step.person for step in certified], [step.epsilon for step in certified], ".", color="tab:red")
    bounds.plot(refused, [0.0] * len(refused), "x", color="black", label=f"not certified: {len(refused)}")
    bounds.set(ylabel="certified bound, nats", xlabel="people forgotten", yscale="symlog" if refused else "log")
    for number, panel in enumerate((shares, bounds)):
        for position, person in enumerate(refreshed):
            label = "refresh" if number == 0 and position == 0 else None
            panel.axvline(person + 0.5, color="tab:green", linewidth=0.8, linestyle=":", label=label)
    shares.legend(loc="lower left", fontsize="small")
    if refused:
        bounds.legend(loc="upper left", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)

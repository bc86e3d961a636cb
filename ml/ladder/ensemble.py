"""Ladder for ensembles. Its one rung is `retrain`: the members that lost rows are trained again from scratch.

The others have read none of the forgotten rows and stay as they are, byte for byte. So a deletion costs as much as
training its members, about 1/K of the ensemble for each person, and what it leaves is the reference itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ml.certify.ensemble import certify_ensemble, check_fit
from ml.forgetting.retained import retained_rows
from ml.inference.members import train_member
from ml.ladder.climb import Candidate, OnProgress, OnStep, Outcome, Progress, climb, conclude
from ml.ladder.policy import Policy
from ml.models.network import Network
from ml.posteriors.ensemble import Ensemble

OnFraction = Callable[[float], None]
TrainMembers = Callable[[Sequence[int], OnFraction], Mapping[int, Tensor | None]]
"""Trains these members again, in whatever order and wherever, and returns each; None for one without rows."""


def forget(
    network: Network,
    posterior: Ensemble,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
    train_members: TrainMembers | None = None,
) -> Outcome[Ensemble]:
    """Remove the rows at positions `forgotten` of `data`: train the members again that had read any of them.

    `train_members` may do so on several machines, each with `retrain_member`; by default it is done here, one after the
    other.
    """
    progress = Progress(policy.seconds, on_progress, on_step)
    check_fit(network, posterior, data)
    retained_rows(data, forgotten)  # checks the positions
    train = train_members or (lambda members, report: _train_here(network, posterior, data, forgotten, members, report))

    def retrain(_: Candidate[Ensemble] | None) -> Candidate[Ensemble]:
        members = posterior.readers_of(forgotten)
        trained = train(members, lambda fraction: progress.report("retrain", fraction))
        after = posterior.replaced(trained, forgotten)
        progress.step("retrain", len(members), 0.0)
        return Candidate(posterior=after, certificate=certify_ensemble(posterior, after, forgotten), steps=len(members))

    candidate, records = climb({"retrain": retrain}, policy, progress, strongest="retrained")
    return conclude(candidate, records, policy, progress)


def retrain_member(
    network: Network,
    posterior: Ensemble,
    data: Tensor,
    forgotten: Tensor,
    member: int,
    on_fraction: OnFraction | None = None,
) -> Tensor | None:
    """Return a member trained from scratch on what is left of its shard, or None if nothing is left."""
    rows = posterior.rows_of(member)
    rows = rows[~torch.isin(rows, forgotten.to(rows.device))]
    if len(rows) == 0:
        return None
    total = posterior.recipe.iterations(len(rows))
    report = None if on_fraction is None else lambda step: on_fraction(step / total)
    return train_member(network, data[rows], int(posterior.seed[member]), posterior.recipe, report)


def _train_here(
    network: Network, posterior: Ensemble, data: Tensor, forgotten: Tensor, members: Sequence[int], report: OnFraction
) -> dict[int, Tensor | None]:
    def report_from(index: int) -> OnFraction:
        return lambda fraction: report((index + fraction) / len(members))

    return {
        member: retrain_member(network, posterior, data, forgotten, member, report_from(index))
        for index, member in enumerate(members)
    }

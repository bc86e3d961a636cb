"""Certificate and readiness of an ensemble: members that lost rows were trained again, the others never saw them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.certify.certificate import Assumption, Certificate
from ml.certify.readiness import Readiness
from ml.errors import InvalidInput
from ml.models.network import Network
from ml.posteriors.ensemble import Ensemble

REFERENCE = "the same ensemble trained without the forgotten rows, by the same recipe and seeds, each row in its shard"
DIRECTION = "epsilon and epsilon_reverse are 0 in both directions: the processed ensemble is the reference"
NOT_PROVED = (
    "That each registered member had read the rows of its shard and no others, and that the split put every person's "
    "rows where it would have put them without anybody else, is the word of whoever registered the ensemble; "
    "`lethe train ensemble` does both.",
    "The recipe, the number of members and the architecture were chosen before the deletion, perhaps with the "
    "forgotten rows in view. They are no part of what was trained again.",
    "Another machine or version of its libraries may round otherwise: training there by the same recipe gives a member "
    "as good, but not the same bits.",
)


@dataclass(frozen=True)
class RetrainedMember:
    """A member that lost rows. With none left it was dropped, after no iterations."""

    member: int
    rows_before: int
    rows_after: int
    seed: int
    iterations: int


@dataclass(frozen=True)
class UnchangedMember:
    """A member that had read none of the rows, with the SHA-256 of its parameters."""

    member: int
    sha256: str


@dataclass(frozen=True)
class RetrainedEnsemble:
    """Constants: which members were trained again, by which recipe, and which are the same bytes as before."""

    members_before: int
    members_after: int
    retrained: tuple[RetrainedMember, ...]
    unchanged: tuple[UnchangedMember, ...]
    epochs: int
    batch_size: int
    learning_rate: float
    prior_share: float


def certify_ensemble(before: Ensemble, after: Ensemble, forgotten: Tensor) -> Certificate:
    """Certify an ensemble whose members that lost rows were trained again: ε is 0.

    That the other members are the same bytes is checked here, not assumed.
    """
    affected = before.readers_of(forgotten)
    retrained = tuple(_describe_retrained(before, forgotten, member) for member in affected)
    survivors = [k for k in range(len(before.members)) if k not in {m.member for m in retrained if m.rows_after == 0}]
    pairs = [(k, position) for position, k in enumerate(survivors) if k not in affected]
    same = sum(before.digest_of(k) == after.digest_of(position) for k, position in pairs)
    recipe = before.recipe
    holds = same == len(pairs)
    return Certificate(
        epsilon=0.0 if holds else math.inf,
        epsilon_reverse=0.0 if holds else math.inf,
        level="retrained" if holds else "none",
        reference=REFERENCE,
        direction=DIRECTION,
        n_retained=len(after.shard),
        assumptions=(
            Assumption(
                "retrained",
                True,
                len(retrained),
                len(affected),
                "every member that had read a forgotten row was trained again, on the retained rows of its shard only",
            ),
            Assumption(
                "unchanged", holds, same, len(pairs), "every other member has the same bytes as before the deletion"
            ),
        ),
        constants=RetrainedEnsemble(
            len(before.members),
            len(after.members),
            retrained,
            tuple(UnchangedMember(k, before.digest_of(k)) for k, _ in pairs),
            recipe.epochs,
            recipe.batch_size,
            recipe.learning_rate,
            recipe.prior_share,
        ),
        not_proved=NOT_PROVED,
    )


def check_ensemble(network: Network, posterior: Ensemble, data: Tensor) -> Readiness:
    """Report what a deletion will cost. Every deletion ends in retraining, so that nothing else needs to converge."""
    check_fit(network, posterior, data)
    rows = torch.bincount(posterior.shard, minlength=len(posterior.members))
    iterations = [posterior.recipe.iterations(int(count)) for count in rows]
    share = max(iterations) / sum(iterations)
    findings = (
        f"{len(rows)} members, each trained on {int(rows.min())} to {int(rows.max())} of the {len(data)} rows",
        f"a deletion of one person trains one member again: up to {max(iterations)} of {sum(iterations)} iterations, "
        f"{100 * share:.3g} % of training the ensemble",
    )
    numbers = {"members": float(len(rows)), "smallest_shard": float(rows.min()), "share_of_training": share}
    return Readiness(("retrained",), 0.0, numbers, findings, ())


def check_fit(network: Network, posterior: Ensemble, data: Tensor) -> None:
    """Raise InvalidInput unless network, ensemble and rows belong together."""
    network.check_data(data)
    if posterior.members.shape[1] != network.parameter_count:
        raise InvalidInput(
            f"members have {posterior.members.shape[1]} parameters: this network has {network.parameter_count}"
        )
    if len(posterior.shard) != len(data):
        raise InvalidInput(f"shard has {len(posterior.shard)} numbers for {len(data)} rows: pass one for each row")


def _describe_retrained(before: Ensemble, forgotten: Tensor, member: int) -> RetrainedMember:
    rows, lost = len(before.rows_of(member)), int((before.shard[forgotten] == member).sum())
    return RetrainedMember(member, rows, rows - lost, int(before.seed[member]), before.recipe.iterations(rows - lost))

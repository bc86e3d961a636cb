"""Draws of a sample set for those who serve predictions: picked by weight without replacement, and handed out alone.

After a deletion the weights of a sample set reveal the forgotten rows. Draws that were picked by them do not carry
them. For N independent draws whose weights have χ² = N/ESS - 1, the joint law of K picked draws is within

    KL(p_R^K ‖ picked) ≤ Σ_{j<K} log(1 + (K-j)χ²/(N-j)) ≤ K² log(1 + χ²/N)

of K draws of the retained posterior p_R: K² times what a certificate states for a single one. A tenth of the effective
draws keeps that below N/400 nats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store.datasets.tensor_files import Content, Piece, pieces_of, view_arrays
from service.store.errors import NotDrawable

DRAWS_FOR_EACH = 10
"""Effective draws that the set needs for each draw that is handed out."""


def draw_file(sample_set: Content, count: int, seed: int) -> list[Piece]:
    """Return a safetensors file, in pieces, with `count` draws of a stored sample set. Raises NotDrawable."""
    arrays = view_arrays(sample_set)
    samples = arrays["samples"]
    log_weights = arrays.get("log_weights", np.zeros(len(samples)))
    largest = largest_count(log_weights)
    if count > largest:
        raise NotDrawable(
            f"{count} draws are more than this version can spare, {largest}: one for every {DRAWS_FOR_EACH} effective "
            "draws. Ask for fewer, or restore effective draws by new chains (rung retrain)"
        )
    return pieces_of({"samples": samples[pick_draws(log_weights, count, seed)]})


def largest_count(log_weights: NDArray[np.float64]) -> int:
    """Return how many draws may be handed out: a tenth of the effective ones, and always one."""
    weights = np.exp(log_weights - log_weights.max())
    return max(1, int(weights.sum() ** 2 / (weights**2).sum()) // DRAWS_FOR_EACH)


def pick_draws(log_weights: NDArray[np.float64], count: int, seed: int) -> NDArray[Any]:
    """Pick positions one after the other, each in proportion to the weights of those that are left.

    The largest of log-weights plus Gumbel noise have this law.
    """
    noise = np.random.default_rng(seed).gumbel(size=len(log_weights))
    return np.argsort(-(log_weights + noise), kind="stable")[:count]

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.func import vmap

import ml
from ml.certify.certificate import Certificate
from ml.certify.importance import weigh_unmoved
from ml.certify.refutation import ScoredDraws, bound_divergence, challenge, score_draws
from ml.certify.samples import REFERENCE, SampleConstants
from ml.errors import InvalidInput
from ml.models.logistic import LogisticRegression
from ml.models.mlp import MLP
from ml.posteriors.mean_field import MeanFieldGaussian, gaussian_kl
from ml.posteriors.sample_set import SampleSet
from vocabulary.bound import Bound
from vocabulary.posterior_kinds import Reading

FAMILY = LogisticRegression(3, prior_std=1.0)
WEIGHTS = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)


def labelled(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    labels = torch.rand(n, generator=generator, dtype=torch.float64) < (features @ WEIGHTS).sigmoid()
    return torch.cat([features, labels.double().unsqueeze(1)], 1)


def gaussian(shift: float, std: float = 0.3) -> MeanFieldGaussian:
    return MeanFieldGaussian(WEIGHTS + shift, torch.full_like(WEIGHTS, std))


def claim(epsilon: float, reading: Reading = "draws") -> Bound:
    """Return the bound of a sample set's certificate that claims no more than this divergence."""
    numbers = dict.fromkeys(("estimate", "chi_square", "relative_ess", "k_hat", "effective_draws"), 1.0)
    others = dict.fromkeys(("undetectable", "unevenness", "rounding", "chain_r_hat", "chain_ess", "chain_width"), 1.0)
    constants = SampleConstants(n_before=10, draws=10, reading=reading, gaussian=None, **numbers, **others)
    certificate = Certificate(epsilon, math.nan, "estimated", REFERENCE, "", 9, (), constants, ())
    return Bound.model_validate(replace(certificate, reference_kind="posterior").to_dict())


def test_no_more_is_measured_than_there_is() -> None:
    """The limit is below the divergence of Gaussians, which is known, in nearly all trials, and not far below."""
    rows, reference, ratios = labelled(40, seed=1), gaussian(0.0), []
    for trial in range(40):
        processed = gaussian(0.1 + 0.006 * trial, std=0.3 + 0.003 * trial)
        truth = float(gaussian_kl(processed.mean - reference.mean, processed.std, reference.std).sum())
        p, q = (score_draws(FAMILY, side, rows, seed=trial) for side in (processed, reference))
        ratios.append(bound_divergence(p, q).at_least / truth)
    assert max(ratios) <= 1
    assert sorted(ratios)[20] > 0.3


def test_equal_posteriors_are_told_apart_as_rarely_as_is_stated() -> None:
    """100 trials with a confidence of 0.8 and independent draws: choosing among 820 events must not make more of it."""
    rows, excesses = labelled(40, seed=1), 0
    for trial in range(100):
        noise = torch.randn(2, 400, 3, generator=torch.Generator().manual_seed(trial), dtype=torch.float64)
        sides = [SampleSet(WEIGHTS + 0.3 * draws, torch.arange(400) % 2) for draws in noise]
        p, q = (score_draws(FAMILY, side, rows) for side in sides)
        excesses += bound_divergence(p, q, confidence=0.8).at_least > 0
    assert excesses <= 20


def test_a_proved_bound_stands_and_the_same_bound_of_an_unchanged_posterior_falls() -> None:
    data = labelled(400, seed=2)
    margins = (data[:, :-1] @ WEIGHTS) * (2 * data[:, -1] - 1)
    forgotten = margins.sort().indices[:30]  # the rows that say the contrary of all others
    keep = torch.ones(len(data), dtype=torch.bool).index_fill(0, forgotten, False)
    before, retrained = (ml.train(FAMILY, rows, FAMILY.initial(rows, 0)).posterior for rows in (data, data[keep]))
    outcome = ml.forget(FAMILY, before, data, forgotten, ml.Policy(1e-6))
    assert outcome.certificate.level == "proved"
    bound = Bound.model_validate(outcome.certificate.to_dict())
    for seed in range(5):
        honest, wrong = (
            challenge(FAMILY, bound, posterior, retrained, data[forgotten], seed=seed)
            for posterior in (outcome.posterior, before)
        )
        assert honest.at_least <= bound.epsilon
        assert wrong.at_least > 1 > bound.epsilon
    assert wrong.share_p > wrong.share_q + 0.5  # the likelihood of the forgotten rows is higher where they are not


def test_the_how_to_of_auditors_finds_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program in docs/how-to/challenge-a-certificate.md, on a model that forgot and on one that did not."""
    page = Path(__file__).parents[3] / "docs/how-to/challenge-a-certificate.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    data, forgotten = labelled(200, seed=2), torch.arange(5)
    data[:5, -1] = 1 - data[:5, -1]
    data[:5, :-1] *= 4
    before = ml.train(FAMILY, data, FAMILY.initial(data, 0)).posterior
    outcome = ml.forget(FAMILY, before, data, forgotten, ml.Policy(1e-6))
    statement = json.dumps({"predicate": {"bound": outcome.certificate.to_dict()}}).encode()
    bundle = {"envelope": {"payload": base64.b64encode(statement).decode()}}
    config = {"dimensions": 3, "prior_std": 1.0}
    manifest = {"family": "logistic-regression", "posterior": "variational", "config": config}
    monkeypatch.chdir(tmp_path)
    Path("certificate.json").write_text(json.dumps(bundle))
    Path("manifest.json").write_text(json.dumps(manifest))
    save_file({"x": data[5:]}, "retained.safetensors")
    save_file({"x": data[:5]}, "forgotten.safetensors")
    for posterior in (outcome.posterior, before):
        Path("posterior.safetensors").write_bytes(posterior.to_bytes())
        exec(program.replace("1_000_000", "4096"), {})
    honest, wrong = capsys.readouterr().out.splitlines()
    assert honest.startswith("not refuted: at least 0 nats were measured")
    assert wrong.startswith("refuted: at least")


def exact_draws(network: MLP, rows: Tensor, seed: int) -> SampleSet:
    """Draw from a posterior by rejection: draws of the prior are kept with the probability of the rows."""
    generator = torch.Generator().manual_seed(seed)
    prior = torch.randn(300_000, network.parameter_count, generator=generator, dtype=torch.float64)
    levels = torch.rand(len(prior), generator=generator, dtype=torch.float64).log()
    kept = prior[levels < vmap(lambda theta: network.log_likelihood(theta, rows).sum(), chunk_size=30_000)(prior)]
    return SampleSet(kept, torch.arange(len(kept)) % 2)


def test_a_network_is_challenged_in_the_direction_of_its_bound() -> None:
    """Reweighted draws predict as the retained posterior does; the same draws without their weights do not."""
    network, data = MLP(3, hidden=2, classes=2, prior_std=1.0), labelled(8, seed=3)
    forgotten = data[:2]
    before, reference = exact_draws(network, data, seed=1), exact_draws(network, data[2:], seed=2)
    assert min(len(before.samples), len(reference.samples)) > 1000
    reweighted = weigh_unmoved(network, before, forgotten)
    weighted = challenge(network, claim(0.02, "weighted draws"), reweighted, reference, forgotten)
    unchanged = challenge(network, claim(0.02), reweighted, reference, forgotten)
    assert weighted.at_least <= 0.02 < unchanged.at_least
    p, q = (score_draws(network, draws, forgotten) for draws in (reference, before))
    wrong = challenge(network, claim(0.02, "weighted draws"), before, reference, forgotten)
    assert wrong.at_least == pytest.approx(bound_divergence(p, q).at_least)
    assert wrong.at_least > 0.02


def test_correlated_and_weighted_draws_count_as_what_they_are_worth() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 500, 1, generator=generator, dtype=torch.float64)
    even = torch.ones(2, 500, dtype=torch.float64)
    independent = ScoredDraws(scores, even).effective(0, 0.0)
    repeated = ScoredDraws(scores.repeat_interleave(10, 1), even.repeat_interleave(10, 1)).effective(0, 0.0)
    weights = torch.cat([1.9 * even[:, :250], 0.1 * even[:, 250:]], 1)
    weighted = ScoredDraws(scores, weights).effective(0, 0.0)
    assert 700 < independent <= 1000
    assert repeated == pytest.approx(independent, rel=0.2)
    assert weighted <= 1000 / 1.81
    certain = ScoredDraws(scores, even).effective(0, -100.0)  # an event that always happens
    assert certain == pytest.approx(independent, rel=0.2)


def test_a_single_chain_is_divided_and_unequal_chains_are_cut() -> None:
    rows, draws = labelled(4, seed=1), torch.zeros(11, 3, dtype=torch.float64)
    single = score_draws(FAMILY, SampleSet(draws, torch.zeros(11, dtype=torch.int64)), rows)
    assert single.scores.shape == (2, 5, 5)
    unequal = score_draws(FAMILY, SampleSet(draws, (torch.arange(11) > 3).long()), rows)
    assert unequal.scores.shape == (2, 4, 5)
    assert torch.allclose(single.scores[0, 0, -1], single.scores[0, 0, :-1].sum())


def test_a_bound_that_no_other_model_can_refute_is_not_challenged() -> None:
    rows, network = labelled(5, seed=1), MLP(3, hidden=2, classes=2)
    samples = SampleSet(torch.zeros(4, 3, dtype=torch.float64), torch.arange(4) % 2)
    retrained = claim(0.0).model_copy(update={"level": "retrained"})
    with pytest.raises(InvalidInput, match="its own reference"):
        challenge(FAMILY, retrained, gaussian(0.0), gaussian(0.0), rows)
    with pytest.raises(InvalidInput, match="excess"):
        challenge(network, claim(0.1), network.initial(0), network.initial(1), rows)
    stored = claim(0.1).model_copy(update={"reference_kind": "stored draws"})
    with pytest.raises(InvalidInput, match="law of the stored draws"):
        challenge(FAMILY, stored, samples, samples, rows)

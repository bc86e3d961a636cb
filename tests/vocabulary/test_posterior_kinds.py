import torch
from safetensors.torch import load

from ml.posteriors.ensemble import Ensemble, Recipe
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from vocabulary.posterior_kinds import LOG_WEIGHT_TENSORS, POSTERIOR_KINDS, POSTERIOR_TENSORS, PosteriorKind


def test_every_kind_names_its_tensors() -> None:
    assert set(POSTERIOR_TENSORS) == set(POSTERIOR_KINDS)


def test_a_posterior_is_saved_under_the_names_of_its_kind() -> None:
    ones = torch.ones(2, dtype=torch.float64)
    files: dict[PosteriorKind, bytes] = {
        "variational": MeanFieldGaussian(0 * ones, ones).to_bytes(),
        "samples": SampleSet(torch.stack([ones, -ones]), torch.tensor([0, 1])).to_bytes(),
        "ensemble": Ensemble(ones[None], torch.zeros(1).long(), torch.zeros(2).long(), Recipe(1, 1, 0.1, 1)).to_bytes(),
    }
    assert set(files) == set(POSTERIOR_KINDS)
    for kind, content in files.items():
        assert set(load(content)) == set(POSTERIOR_TENSORS[kind])


def test_weighted_samples_have_two_more_tensors() -> None:
    ones = torch.ones(2, dtype=torch.float64)
    content = SampleSet(torch.stack([ones, -ones]), torch.tensor([0, 1]), ones.clone()).to_bytes()
    assert set(load(content)) == {*POSTERIOR_TENSORS["samples"], *LOG_WEIGHT_TENSORS}

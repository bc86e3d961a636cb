from __future__ import annotations

import pytest
import torch

from benchmarks.certificates.certify_scenes import Scene, choose, make_scene


@pytest.fixture(scope="module")
def linear() -> Scene:
    return make_scene("linear-regression", 0)


def test_rows_are_chosen_as_their_kind_says(linear: Scene) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, everything = linear.model.data, range(len(linear.model.data))
    sizes = set()
    for _ in range(60):
        near = choose("clustered", linear, linear.model, generator)
        features = rows[near][:, : linear.features]
        reach = (features - features[0]).norm(dim=1).max()
        others = rows[[i for i in everything if i not in set(near.tolist())]][:, : linear.features]
        assert float((others - features[0]).norm(dim=1).min()) >= float(reach)
        influential = choose("influential", linear, linear.model, generator)
        assert float(linear.influence[influential].min()) > float(linear.influence.median())
        whole = choose("whole", linear, linear.model, generator).tolist()
        assert any(set(cluster.tolist()) < set(whole) for cluster in linear.clusters)
        assert len(set(whole)) == len(whole) <= 135
        sizes |= {len(near), len(influential)}
    assert {1, 35} <= sizes  # one row and 5 % of 700
    assert max(sizes) == 35


def test_influence_is_the_length_of_a_rows_gradient_in_the_natural_metric(linear: Scene) -> None:
    posterior, row = linear.model.posterior, linear.model.data[7]
    miss, x = row[:-1].dot(posterior.mean) - row[-1], row[:-1]
    expected = (posterior.std * miss * x).square().sum() + (
        posterior.std * x.square() * posterior.std
    ).square().sum() / 2
    assert float(linear.influence[7]) == pytest.approx(float(expected.sqrt()), rel=1e-12)

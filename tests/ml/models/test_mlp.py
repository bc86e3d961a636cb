import pytest
import torch

from ml.errors import InvalidInput
from ml.models.mlp import MLP


def test_outputs_follow_the_formula() -> None:
    network = MLP(dimensions=3, hidden=4, classes=2)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(network.parameter_count, generator=generator, dtype=torch.float64)
    assert len(theta) == 3 * 4 + 4 + 4 * 2 + 2
    first, second = theta[:12].view(4, 3), theta[16:24].view(2, 4)
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    expected = (x @ first.T + theta[12:16]).clamp(min=0) @ second.T + theta[24:]
    assert torch.allclose(network.outputs(theta, torch.cat([x, torch.zeros(7, 1)], 1)), expected, atol=1e-13)


def test_the_papers_prior_is_the_default() -> None:
    assert MLP(2, 2, 2).prior_std == 0.15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 2), "dimensions is 0"),
        ((1, 0, 2), "hidden is 0"),
        ((1, 1, 1), "classes is 1"),
        ((1, 1, 2, 0.0), "prior"),
    ],
)
def test_a_wrong_configuration_is_refused(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MLP(*arguments)

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput, MemoryExhausted
from ml.models import network_energy
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy
from ml.models.potential import Potential
from ml.models.synthetic import synthetic_mixture
from ml.numerics.chunking import RowBudget
from tests.ml.likelihoods import Mixture
from tests.ml.networks import TINY, labelled_rows, random_theta

ROWS = torch.arange(1000.0)
ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError("Unable to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
)


class Memory:
    """Memory with room for a number of rows."""

    def __init__(self, rows: int, error: Exception = ERRORS[0]) -> None:
        self.rows, self.error, self.refused = rows, error, 0

    def hold(self, rows: int) -> None:
        if rows > self.rows:
            self.refused += 1
            raise self.error

    def total(self, at_once: int) -> float:
        total = 0.0
        for chunk in torch.split(ROWS, at_once):
            self.hold(len(chunk))
            total += float(chunk.sum())
        return total


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_rows_are_halved_until_they_fit_and_the_budget_keeps_the_number(error: Exception) -> None:
    budget, memory = RowBudget(65_536), Memory(100, error)
    assert budget.run(memory.total, len(ROWS)) == float(ROWS.sum())
    assert (budget.rows_at_once, memory.refused) == (62, 4)  # all 1,000 rows, 500, 250, 125
    assert budget.run(memory.total, len(ROWS)) == float(ROWS.sum())
    assert memory.refused == 4


def test_rows_that_fit_are_processed_at_once() -> None:
    budget, memory = RowBudget(65_536), Memory(1000)
    assert budget.run(memory.total, len(ROWS)) == float(ROWS.sum())
    assert (budget.rows_at_once, memory.refused) == (65_536, 0)


def test_memory_without_room_for_a_row_is_exhausted() -> None:
    memory = Memory(0)
    with pytest.raises(MemoryExhausted, match="give the worker more memory"):
        RowBudget(65_536).run(memory.total, len(ROWS))
    assert memory.refused == 10


def test_other_errors_are_raised() -> None:
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        RowBudget(8).run(Memory(1, RuntimeError("shapes do not fit")).total, len(ROWS))


def test_a_budget_of_no_rows_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="at least one row"):
        RowBudget(0)


def test_derivatives_of_a_potential_adapt(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = synthetic_mixture(50, seed=3)
    samples = torch.randn(5, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    ample, tight, memory = Potential(Mixture(), data), Potential(Mixture(), data), Memory(20)
    expected = ample.values(samples), ample.gradients(samples), ample.product(samples[0], samples[1])
    likelihood = Mixture.log_likelihood

    def hold(self: Mixture, theta: Tensor, rows: Tensor) -> Tensor:
        memory.hold(len(rows))
        return likelihood(self, theta, rows)

    monkeypatch.setattr(Mixture, "log_likelihood", hold)
    computed = tight.values(samples), tight.gradients(samples), tight.product(samples[0], samples[1])
    assert memory.refused == 4  # five times 50 rows at once, or twice, or once; then 31 rows; 15 fit
    for value, reference in zip(computed, expected, strict=True):
        assert torch.allclose(value, reference, rtol=1e-11, atol=1e-11)
    hessian = tight.mean_hessian(samples)
    assert memory.refused == 4
    assert torch.allclose(hessian, ample.mean_hessian(samples), rtol=1e-11, atol=1e-11)


def test_derivatives_of_a_network_adapt(monkeypatch: pytest.MonkeyPatch) -> None:
    data, rows = labelled_rows(TINY, 40), torch.arange(40)
    draws = torch.stack([random_theta(TINY, seed) for seed in (1, 2)])
    drift, vector = 0.1 * random_theta(TINY, 5), random_theta(TINY, 6)
    ample, tight, memory = NetworkEnergy(TINY, data, draws), NetworkEnergy(TINY, data, draws), Memory(6)
    expected = ample.misfit_gradient(drift, rows), ample.curvature(rows, 2.0)(vector)
    misfit, outputs = ample.misfit(drift, rows), Network.outputs

    def hold(self: Network, theta: Tensor, held: Tensor) -> Tensor:
        memory.hold(len(held))
        return outputs(self, theta, held)

    monkeypatch.setattr(Network, "outputs", hold)
    assert torch.allclose(tight.curvature(rows, 2.0)(vector), expected[1], rtol=1e-11, atol=1e-11)
    assert memory.refused == 2  # 20 rows for each of the two draws, then 10; 5 fit
    assert torch.allclose(tight.misfit_gradient(drift, rows), expected[0], rtol=1e-11, atol=1e-11)
    assert tight.misfit(drift, rows) == pytest.approx(misfit, rel=1e-12)
    assert memory.refused == 3  # 10 rows for the single draw read here; 5 fit


def test_a_linearisation_that_leaves_no_room_for_a_product_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    data, rows = labelled_rows(TINY, 40), torch.arange(40)
    energy = NetworkEnergy(TINY, data, torch.stack([random_theta(TINY, seed) for seed in (1, 2)]))
    vector, memory, linearised = random_theta(TINY, 6), Memory(0), []
    expected, build = energy.curvature(rows, 1.0)(vector), network_energy.gauss_newton

    def watched(outputs: list[network_energy.functools.partial[Tensor]], at: Tensor, keep: bool) -> object:
        product = build(outputs, at, keep)
        linearised.append(keep)

        def refuse_once(direction: Tensor) -> Tensor:
            memory.hold(0 if memory.refused else 1)
            return product(direction)

        return refuse_once

    monkeypatch.setattr(network_energy, "gauss_newton", watched)
    assert torch.allclose(energy.curvature(rows, 1.0)(vector), expected, rtol=1e-11, atol=1e-11)
    assert (linearised, memory.refused) == ([True, False], 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space of a process")
def test_a_process_with_little_memory_still_gets_its_product() -> None:
    """The product takes some 700 MB at once, and 250 MB are left."""
    script = textwrap.dedent(
        """
        import re, resource, torch
        from pathlib import Path
        from ml.models.potential import Potential
        from ml.models import build

        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(20_000, 2, generator=generator, dtype=torch.float64)
        theta = torch.randn(200, generator=generator, dtype=torch.float64)
        family = build("gaussian-mixture", {"components": 100, "dimensions": 2, "prior_std": 1.0})
        expected = Potential(family, rows, rows_at_once=1_000).product(theta, theta)
        used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (used + 250 * 2**20, resource.RLIM_INFINITY))
        tight = Potential(family, rows)
        product = tight.product(theta, theta)
        assert torch.allclose(product, expected, rtol=1e-9, atol=1e-9)
        print(tight._budget.rows_at_once)
        """
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    assert 500 <= int(process.stdout) <= 10_000

"""Register a model of each family, forget one person, and check the certificate.

    lethe up                                  # in another terminal
    python examples/models.py                 # every family, as variational parameters and as samples
    python examples/models.py linear-regression samples
    python examples/models.py mlp             # a network: variational parameters, and an ensemble

The models are trained by Lethe's own code. Yours may come from any library:
docs/reference/models.md describes the files.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

import ml
from lethe import Client
from lethe.verify import Verified, verify
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN
from ml.inference.chains import SAFE_HMC, sample
from ml.inference.members import train_ensemble
from ml.inference.network_training import train_to_convergence
from ml.inference.shards import assign_shards
from ml.models.mlp import MLP
from ml.posteriors.ensemble import Recipe

URL, TOKENS = "http://127.0.0.1:8000", Path(".lethe/tokens")
PEOPLE, ROWS_EACH = 50, 4
KINDS = ("variational", "samples", "ensemble")
POLICIES: dict[str, dict[str, Any]] = {
    "variational": {"epsilon": 1e-6, "level": "proved"},
    "samples": {"epsilon": 0.05, "level": "estimated"},
}
NETWORK_POLICY: dict[str, Any] = {"epsilon": 0.1, "level": "estimated"}
ENSEMBLE_POLICY: dict[str, Any] = {"epsilon": 1e-6, "level": "retrained"}
SHARDS = 4


@dataclass(frozen=True, eq=False)
class Example:
    family: str
    config: Mapping[str, Any]
    data: torch.Tensor

    @property
    def model(self) -> ml.Family:
        return ml.build_family(self.family, self.config)

    def posterior(self, kind: str) -> bytes:
        """Return `mean` and `std`, or `samples` and `chain`, as safetensors."""
        trained = ml.train(self.model, self.data, self.model.initial(self.data, seed=0)).posterior
        if kind == "variational":
            return trained.to_bytes()
        start, generator = trained.mean.flatten(), torch.Generator().manual_seed(0)
        return sample(self.model, self.data, start, SAFE_HMC, generator).sample_set.to_bytes()

    def policy(self, kind: str) -> dict[str, Any] | None:
        """Return a policy that its certificates can meet; None for a kind that this example does not train."""
        return POLICIES.get(kind)


@dataclass(frozen=True, eq=False)
class NetworkExample(Example):
    """A network: its certificates are estimates, except for ensembles. Chains that mix take longer than an example."""

    def posterior(self, kind: str) -> bytes:
        if kind == "ensemble":
            owners = [person(row)["identity_value"] for row in range(len(self.data))]
            shard = assign_shards(owners, SHARDS, key=secrets.token_bytes(32))
            recipe = Recipe(epochs=20, batch_size=32, learning_rate=1e-2, prior_share=1 / SHARDS)
            return train_ensemble(MLP(**self.config), self.data, shard, recipe).to_bytes()
        training = replace(SAFE_BNN, iterations=3_000, decay_every=750, learning_rate=1e-2)
        return train_to_convergence(MLP(**self.config), self.data, 0, training, AveragedDescent(500, 300)).to_bytes()

    def policy(self, kind: str) -> dict[str, Any] | None:
        return {"variational": NETWORK_POLICY, "ensemble": ENSEMBLE_POLICY}.get(kind)


def examples() -> Iterator[Example]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(PEOPLE * ROWS_EACH, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(PEOPLE * ROWS_EACH, 1, generator=generator, dtype=torch.float64)
    signal = features @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + noise
    # The target is the last column. An intercept would be a column of ones.
    linear = torch.cat([features, signal], 1)
    yield Example("linear-regression", {"dimensions": 2, "noise_std": 1.0, "prior_std": 1.0}, linear)
    logistic = torch.cat([features, (signal > 0).double()], 1)
    yield Example("logistic-regression", {"dimensions": 2, "prior_std": 1.0}, logistic)
    softmax = torch.cat([features, (signal > -1).double() + (signal > 1).double()], 1)
    config = {"dimensions": 2, "classes": 3, "prior_std": 1.0, "draws": 16, "seed": 0}
    yield Example("softmax-regression", config, softmax)
    # A mixture has no target. Its two groups are far apart, so that a chain never swaps their labels.
    mixture = features + 3 * torch.sign(features[:, :1])
    yield Example("gaussian-mixture", {"components": 2, "dimensions": 2, "prior_std": 3.0}, mixture)
    yield network_example()


def network_example() -> NetworkExample:
    """Return a classifier of eight features and three classes, in float32: networks compute in the type of the rows."""
    generator = torch.Generator().manual_seed(0)
    features, weights = torch.randn(1_000, 8, generator=generator), torch.randn(8, 3, generator=generator)
    labels = torch.multinomial((features @ weights).softmax(1), 1, generator=generator)
    config = {"dimensions": 8, "hidden": 4, "classes": 3, "prior_std": 0.3}
    return NetworkExample("mlp", config, torch.cat([features, labels.float()], 1))


def person(row: int) -> dict[str, str]:
    return {"identity_type": "email", "identity_value": f"person-{row // ROWS_EACH}@example.org"}


def register(
    engineer: Client, example: Example, kind: str, posterior: bytes, policy: Mapping[str, Any]
) -> dict[str, Any]:
    manifest = {
        "name": f"{example.family}, {kind}",
        "family": example.family,
        "posterior": kind,
        "config": dict(example.config),
        "policy": dict(policy),
    }
    subjects = [person(row) for row in range(len(example.data))]
    return engineer.register_model(manifest, posterior, save({"x": example.data}), subjects)


def forget(engineer: Client, compliance: Client, model_id: str, row: int) -> Verified:
    """Delete the owner of a row from one model, and verify the certificate against the new posterior."""
    receipt = compliance.delete([person(row)], models=[model_id])
    deletion = compliance.wait(receipt["id"])
    if deletion["status"] != "completed":
        raise SystemExit(f"deletion {receipt['id']}: {deletion['models'][0]['failure']}")
    certificate = compliance.certificate(deletion["models"][0]["certificate"])
    return verify(certificate, compliance.keys(), engineer.posterior(model_id))


def main(families: list[str], kinds: list[str]) -> None:
    with (
        Client(URL, (TOKENS / "engineer.token").read_text()) as engineer,
        Client(URL, (TOKENS / "compliance.token").read_text()) as compliance,
    ):
        for example in examples():
            for kind in kinds:
                policy = example.policy(kind)
                if example.family in families and policy is not None:
                    posterior = example.posterior(kind)
                    model_id = register(engineer, example, kind, posterior, policy)["id"]
                    ready = engineer.readiness(model_id)["ready"]
                    bound = forget(engineer, compliance, model_id, row=0).predicate["bound"]
                    level = f"epsilon {bound['epsilon']:.1e}, level {bound['level']}"
                    print(f"{example.family:20} {kind:12} ready: {ready}, forgotten and verified: {level}")


if __name__ == "__main__":
    every = [example.family for example in examples()]
    chosen = [name for name in sys.argv[1:] if name in every]
    main(chosen or every, [kind for kind in sys.argv[1:] if kind in KINDS] or list(KINDS))

from __future__ import annotations

import uuid

import numpy as np
import pytest

from service.store.certificates.destruction import Destruction, state_reason
from service.store.certificates.statements import issue
from service.store.datasets.dataset import Dataset
from service.store.datasets.tree import DatasetTree
from service.store.tables import Model, Version
from tests.bundle_schema import check_bundle
from tests.bundles import SIGNER
from tests.service.store.certificates.test_statements import DELETION, RECEIVED_AT, predicate_of
from vocabulary.certificate import ErasureFacts, ScheduledFile


def destruction() -> Destruction:
    salts = np.tile(np.arange(16, dtype=np.uint8), (5, 1))
    dataset = Dataset({"x": np.arange(10.0).reshape(5, 2)}, np.arange(5, dtype=np.int64), salts)
    files = [ScheduledFile(at=RECEIVED_AT, digest=digit * 64, kind="posterior") for digit in "01"]
    config = {"components": 2, "dimensions": 2, "prior_std": 1.0}
    return Destruction(
        model=Model(
            id=uuid.UUID(int=5), name="m", family="gaussian-mixture", posterior_kind="variational", config=config
        ),
        version=Version(number=3, posterior_digest="0" * 64, dataset_digest="1" * 64, record_count=5),
        tree=DatasetTree.from_dataset(dataset),
        erasure=ErasureFacts(destroyed=[], scheduled=files),
        statement=state_reason(5, 5, 2),
    )


def test_it_states_what_ended_and_has_no_bound() -> None:
    certificate = issue(SIGNER, destruction(), DELETION, ["b" * 64, "a" * 64], [4], [1, 4], RECEIVED_AT)
    check_bundle(certificate.bundle)
    predicate = predicate_of(certificate.bundle)
    assert predicate["records"] == {"before": 5, "after": 0, "forgotten_in_batch": 5}
    assert (predicate["model"]["name"], predicate["subjects"]) == ("m", ["a" * 64, "b" * 64])
    assert predicate["dataset"].keys() == {"before"}
    assert predicate["forgotten"].keys() == {"before", "commitments"}
    assert len(predicate["forgotten"]["commitments"]) == 2
    assert not {"bound", "policy", "rungs", "effects"} & predicate.keys()
    assert any("outside of Lethe" in sentence for sentence in predicate["not_proved"])


def test_records_that_the_model_does_not_have_cannot_be_certified() -> None:
    with pytest.raises(ValueError, match="not in the data set"):
        destruction().prove([1, 7])


def test_the_reason_tells_an_emptied_model_from_one_with_too_few_records() -> None:
    assert "named all records that the model still had" in state_reason(5, 5, 2)
    assert "left the model 1 of 5 records" in state_reason(5, 4, 2)
    assert "needs at least 2" in state_reason(5, 4, 2)

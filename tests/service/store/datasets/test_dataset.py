from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from safetensors.numpy import load, save

from service.store.datasets.dataset import Dataset, load_dataset, parse_dataset_upload
from service.store.datasets.tree import commit_records
from service.store.errors import InvalidRegistration

CONTENT = save({"x": np.arange(12.0).reshape(6, 2)})


def test_rows_get_a_number_and_a_random_salt() -> None:
    first, second = parse_dataset_upload(CONTENT), parse_dataset_upload(CONTENT)
    assert first.records.tolist() == list(range(6))
    assert len({salt.tobytes() for salt in (*first.salts, *second.salts)}) == 12


def test_a_stored_data_set_is_read_back_without_its_removed_rows() -> None:
    dataset = parse_dataset_upload(CONTENT)
    retained = [0, 2, 3, 5]
    stored = load_dataset(b"".join(dataset.without([1, 4]).pieces()))
    assert stored.records.tolist() == retained
    assert set(stored.arrays) == {"x"}  # a model is never fitted to salts
    assert np.array_equal(stored.arrays["x"], dataset.arrays["x"][retained])
    assert np.array_equal(stored.salts, dataset.salts[retained])


def test_float32_rows_stay_float32_and_are_committed_as_float32() -> None:
    rows = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
    dataset = parse_dataset_upload(save({"x": rows}))
    stored = load_dataset(b"".join(dataset.without([1, 4]).pieces()))
    assert stored.arrays["x"].dtype == np.float32
    assert np.array_equal(stored.arrays["x"], rows[[0, 2, 3, 5]])
    wider = Dataset({"x": stored.arrays["x"].astype(np.float64)}, stored.records, stored.salts)
    expected = sha256(
        b"lethe-record-v1\0" + stored.salts[1].tobytes() + (2).to_bytes(8, "big") + b"x\0" + rows[2].tobytes()
    )
    assert commit_records(stored)[1] == expected.digest() != commit_records(wider)[1]
    assert commit_records(dataset)[2] == commit_records(stored)[1]


def test_a_removed_rows_salt_is_not_in_the_file() -> None:
    dataset = parse_dataset_upload(CONTENT)
    content = b"".join(dataset.without([1, 4]).pieces())
    assert [salt.tobytes() in content for salt in dataset.salts] == [True, False, True, True, False, True]


def test_a_file_without_salts_gets_new_ones() -> None:
    old = save({"x": np.zeros((6, 2)), "record": np.arange(6)})
    first, second = load_dataset(old), load_dataset(old)
    assert len({salt.tobytes() for salt in (*first.salts, *second.salts)}) == 12
    assert load(b"".join(first.pieces())).keys() == {"x", "record", "salt"}


@pytest.mark.parametrize("name", ["record", "salt"])
def test_own_tensor_names_are_reserved(name: str) -> None:
    with pytest.raises(InvalidRegistration, match=f"'{name}' is reserved"):
        parse_dataset_upload(save({"x": np.zeros((6, 2)), name: np.zeros(6)}))

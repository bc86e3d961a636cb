from __future__ import annotations

import pytest

from lethe.progress import stages


def test_each_bar_shows_its_name_and_stage_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with stages() as add_bar:
        first, second = add_bar("Training"), add_bar("Forgetting")
        first("epoch 3", 0.5)
        second("warm", 1.0)
        print("result")  # noqa: T201
    output, errors = capsys.readouterr()
    assert "Training: epoch 3" in errors
    assert "Forgetting: warm" in errors
    assert "result" in output + errors  # Rich prints above its bars
    assert "Training" not in output

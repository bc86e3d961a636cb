from typing import get_args

from service.printing import wording
from vocabulary.rungs import RUNGS, RungName


def test_rungs_run_from_the_cheapest_to_retraining() -> None:
    assert RUNGS == ("influence", "newton", "reweight", "warm", "retrain")
    assert set(RUNGS) == set(get_args(RungName))


def test_the_printer_describes_every_rung() -> None:
    assert set(wording.RUNGS) == set(RUNGS)

from typing import get_args

from service.printing import wording
from vocabulary.rungs import DEFAULT_RUNGS, RUNGS, RungName


def test_a_policy_has_to_name_the_rungs_that_reveal_rows() -> None:
    assert DEFAULT_RUNGS == ("influence", "newton", "warm", "retrain")
    assert RUNGS == ("influence", "newton", "reweight", "temper", "warm", "retrain")
    assert set(RUNGS) == set(get_args(RungName))


def test_the_printer_describes_every_rung() -> None:
    assert set(wording.RUNGS) == set(RUNGS)

from __future__ import annotations

import math

from ml.certify.sample_constants import SampleConstants


def test_what_networks_add_is_nan_for_other_models() -> None:
    constants = SampleConstants(
        n_before=10,
        draws=100,
        reading="draws",
        estimate=0.1,
        chi_square=0.2,
        relative_ess=0.9,
        k_hat=0.1,
        effective_draws=90.0,
        undetectable=0.01,
        unevenness=0.0,
        rounding=0.0,
        chain_r_hat=1.0,
        chain_ess=100.0,
        chain_width=1.0,
        gaussian=None,
    )
    added = (constants.s_r_hat, constants.s_ess, constants.panel_r_hat, constants.panel_ess)
    assert all(math.isnan(number) for number in (*added, constants.independent_draws, constants.effective_parameters))

"""Inputs of `lucidae.mne`: evokeds that change or differ, few samples, units, arguments."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from extras import require

mne = require("mne")

from evoked_recordings import localised, simulated
from lucidae.mne import sparse_vae


def test_a_result_does_not_change_with_the_evoked_of_the_user():
    data = simulated(noise=0.3)
    expected = localised(data)
    stc, residual = expected.stc.data.copy(), expected.residual.data.copy()
    result = localised(data)
    data.evoked.data[:] = 0.0
    data.evoked.crop(0.0, None)
    assert_array_equal(result.stc.data, stc)
    assert_array_equal(result.residual.data, residual)


def test_a_result_of_a_list_does_not_change_with_another_evoked():
    data = simulated(noise=0.3)
    pair = [data.evoked, data.evoked.copy().crop(-0.005, None)]
    settings = {"return_result": True, "verbose": False}
    expected = sparse_vae(pair, data.forward, data.cov, **settings)[1].amplitudes
    result = sparse_vae(pair, data.forward, data.cov, **settings)[1]
    pair[0].crop(0.0, None)
    assert_array_equal(result.amplitudes, expected)

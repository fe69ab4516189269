"""Folds and stacks give the same digits in this process, in threads and in other processes."""

import re
import sys
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from numpy.testing import assert_array_equal
from sklearn.base import clone

from lucidae import DropoutRegressor, SparseVAE
from lucidae.iteration import ProgressBar, loop, of_each, progress_bars
from lucidae.sparsity import solve_batch


@pytest.fixture(scope="module")
def processes():
    """Leave no process behind that other tests would reuse with the paths of this one."""
    yield 2
    get_reusable_executor().shutdown(wait=True)


def rows(n=40, features=30, targets=3):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, features))
    return X, X[:, :2] @ rng.standard_normal((2, targets)) + rng.standard_normal((n, targets))


CHOSEN = {
    "partition": DropoutRegressor(2, dropout="cv", cv=3),
    "overlapping": DropoutRegressor(2, dropout="cv", cv=[([0, 1, 2, 3], [4]), (range(9), [9])]),
    "full": SparseVAE(noise_variance="cv", cv=3),
    "diagonal": SparseVAE(noise_variance="cv", cv=2, posterior="diagonal"),
}


def digits(model):
    found = model.cv_.errors if isinstance(model, DropoutRegressor) else model.relevance_
    return np.concatenate([found.ravel(), model.coef_.ravel(), np.ravel(model.intercept_)])


@pytest.mark.parametrize("name", CHOSEN)
def test_folds_in_processes_give_the_same_digits(name, processes):
    X, y = rows()
    weights = np.arange(40) % 3 + 1.0
    alone = clone(CHOSEN[name]).fit(X, y, weights)
    together = clone(CHOSEN[name]).set_params(n_jobs=processes).fit(X, y, weights)
    assert_array_equal(digits(together), digits(alone))
    assert clone(together).n_jobs == processes


def is_shown_on_a_terminal():
    sys.stderr = SimpleNamespace(isatty=lambda: True)
    return bool(progress_bars("folds", "auto"))


def test_processes_show_no_progress_of_their_own(processes):
    assert of_each(is_shown_on_a_terminal, [()] * 2, n_jobs=processes) == [False, False]


@pytest.mark.parametrize("n_jobs", [3, 10**6, 10**30])
def test_there_are_not_more_workers_than_items(n_jobs, monkeypatch):
    started = []

    class Watched(loop.Parallel):
        def __init__(self, n_jobs=None, **options):
            started.append(n_jobs)
            super().__init__(n_jobs=n_jobs, **options)

    monkeypatch.setattr(loop, "Parallel", Watched)
    with joblib.parallel_config("threading"):
        assert of_each(pow, [(2, 3), (3, 2)], n_jobs=n_jobs) == [8, 9]
        assert of_each(pow, [], n_jobs=n_jobs) == []
    assert started == [2, 1]


@pytest.mark.parametrize("name", CHOSEN)
def test_none_follows_the_context_of_joblib(name):
    X, y = rows()
    alone = clone(CHOSEN[name]).fit(X, y)
    with joblib.parallel_config("threading", n_jobs=2):
        assert_array_equal(digits(clone(CHOSEN[name]).fit(X, y)), digits(alone))


def test_a_stack_is_divided_as_the_context_says(monkeypatch):
    rng = np.random.default_rng(1)
    Phi = rng.standard_normal((4, 12, 20))
    y = Phi[:, :, :2] @ rng.standard_normal((4, 2, 5))
    parts = []

    def counted(function, items, **settings):
        parts.append(len(items))
        return of_each(function, items, **settings)

    monkeypatch.setattr("lucidae.sparsity.batch.of_each", counted)
    alone = solve_batch(Phi, y, noise_variance=0.01)
    assert parts == []
    with joblib.parallel_config("threading", n_jobs=2):
        divided = solve_batch(Phi, y, noise_variance=0.01)
    assert parts == [2]
    assert_array_equal(divided.value.coef, alone.value.coef)


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_values_keep_their_order_and_progress_is_shown(n_jobs, capsys, monkeypatch):
    monkeypatch.setattr("lucidae.iteration.progress.DELAY", 0.0)
    with joblib.parallel_config("threading"):
        found = of_each(divmod, [(i, 3) for i in range(7)], n_jobs=n_jobs)
        assert found == [divmod(i, 3) for i in range(7)]
        bar = ProgressBar("folds")
        assert of_each(divmod, [(7, 2), (8, 2)], n_jobs=n_jobs, callbacks=[bar]) == [(3, 1), (4, 0)]
    assert re.search(r"folds: 100%.* 2/2 ", capsys.readouterr().err)
    assert of_each(divmod, []) == []


def test_an_error_in_a_fold_is_raised():
    with pytest.raises(ZeroDivisionError):
        of_each(divmod, [(1, 1), (1, 0)], n_jobs=1, callbacks=[lambda progress: None])

"""Numbers of threads: what is limited, what is not, and what is restored."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from threadpoolctl import ThreadpoolController, threadpool_info

from lucidae import LinearAutoencoder
from lucidae.arrays import threads
from lucidae.arrays.threads import (
    blas_threads,
    in_threads,
    one_scipy_thread,
    one_thread,
)
from lucidae.rows.operator import RowOperator


def numbers():
    """Return the number of threads of each BLAS library, by its path."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {pool["filepath"]: pool["num_threads"] for pool in pools}


@pytest.fixture
def two():
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        yield


@pytest.mark.usefixtures("two")
def test_scipy_alone_is_limited_and_restored():
    before = numbers()
    with one_scipy_thread():
        during = numbers()
    assert numbers() == before
    alone = threads._scipy_alone()
    limited = set() if alone is None else {x["filepath"] for x in alone.info()}
    assert {path for path in before if during[path] == 1} == limited
    assert len(limited) < len(before)


@pytest.mark.usefixtures("two")
def test_nothing_is_limited_unless_wanted():
    before = numbers()
    with one_scipy_thread(False):
        assert numbers() == before


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("first", [one_thread, one_scipy_thread])
@pytest.mark.parametrize("second", [one_thread, one_scipy_thread])
def test_nested_limits_restore_the_numbers(first, second):
    before = numbers()
    with pytest.raises(RuntimeError, match="inside"), first(), second():
        raise RuntimeError("inside")
    assert numbers() == before


@pytest.mark.usefixtures("two")
def test_a_limit_that_ends_in_another_thread_first_restores_the_numbers():
    before, entered, leave = numbers(), threading.Event(), threading.Event()

    def hold():
        with one_scipy_thread():
            entered.set()
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(10)
    with one_thread():
        leave.set()
        holder.join(10)
    assert numbers() == before


@pytest.mark.usefixtures("two")
def test_fits_in_several_threads_restore_the_numbers():
    before, X = numbers(), np.random.default_rng(0).standard_normal((40, 6))
    model = LinearAutoencoder(2, solver="gradient", tol=1e-3, random_state=0)
    running = [threading.Thread(target=clone(model).fit, args=(X,)) for _ in range(6)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert numbers() == before


@pytest.mark.usefixtures("two")
def test_the_permitted_number_is_that_before_the_limit():
    assert blas_threads() == 2
    with one_thread():
        assert set(numbers().values()) == {1}
        assert blas_threads() == 2
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        assert blas_threads() == 1


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_ranges_cover_all_rows_in_order(count):
    parts = in_threads(lambda first, last: np.arange(first, last), 17, count)
    assert len(parts) == min(count, 17)
    assert_array_equal(np.concatenate(parts), np.arange(17))


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("shape", "limited"), [((100, 10), False), ((100, 100), True), ((1000, 1000), False)]
)
def test_small_rows_are_multiplied_by_one_thread(shape, limited):
    before = numbers()
    with RowOperator.of(np.empty(shape)).suitable_threads():
        assert (set(numbers().values()) == {1}) is limited
    assert numbers() == before


def test_libraries_with_other_numbers_of_threads_are_restored_without_a_warning():
    libraries = threads._controller().select(user_api="blas").lib_controllers
    if len(libraries) < 2:
        pytest.skip("NumPy and SciPy share one BLAS library")
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        libraries[0].set_num_threads(1)
        before = numbers()
        with one_thread():
            assert blas_threads() == 1
        assert numbers() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_lock_that_another_thread_holds_is_free_in_a_forked_process():
    script = """
import os, threading
from lucidae.arrays.threads import fork_safe

for make in (threading.Lock, threading.RLock):
    lock, held, done = fork_safe(make()), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not lock.acquire(blocking=False), "the lock of the parent is still held"
    done.set()
    thread.join()
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    subprocess.run(command, check=True, timeout=60)

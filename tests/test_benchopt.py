"""The benchmark of sparse Bayesian learning: its energy, its solvers, and a run by benchopt."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import extras
from lucidae import SparseVAE
from lucidae.datasets import make_sparse_regression

FOLDER = Path(__file__).parents[1] / "benchmarks" / "benchmark_sbl"


def loaded(path):
    """Import a file of the benchmark by its path, as benchopt does."""
    spec = importlib.util.spec_from_file_location(f"benchmark_sbl_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


formulas = loaded(FOLDER / "benchmark_utils" / "energy.py")


class Base:
    """Stands for the base classes of benchopt: parameters become attributes."""

    def __init__(self, **parameters):
        vars(self).update(parameters)


@pytest.fixture
def benchmark(monkeypatch):
    """The classes of the benchmark, without benchopt: what they compute is tested, not the loop."""
    fake = ModuleType("benchopt")
    fake.BaseObjective = fake.BaseSolver = fake.BaseDataset = Base
    package = ModuleType("benchmark_utils")
    monkeypatch.setitem(sys.modules, "benchopt", fake)
    monkeypatch.setitem(sys.modules, "benchmark_utils", package)
    monkeypatch.setitem(sys.modules, "benchmark_utils.energy", formulas)

    def part(kind, name):
        return getattr(loaded(FOLDER / name), kind)

    return part


def problem(n, seed=0):
    return make_sparse_regression(20, 30, 3, n, 2, snr_db=20, random_state=seed)


@pytest.mark.parametrize("n", [1, 5])
def test_the_energy_is_minus_twice_the_log_likelihood_and_that_of_the_estimator(n):
    data = problem(n)
    model = SparseVAE(noise_variance=data.noise_variance, fit_intercept=False)
    model.fit(data.dictionary, data.responses)
    given = data.dictionary, data.responses, model.relevance_, data.noise_variance
    found = formulas.energy(*given)
    assert_allclose(found, model.energy_ / n, rtol=1e-9)
    covariance = data.dictionary * model.relevance_ @ data.dictionary.T
    covariance += data.noise_variance * np.eye(20)
    fit = np.trace(data.responses.T @ np.linalg.inv(covariance) @ data.responses) / n
    assert_allclose(found, fit + np.linalg.slogdet(covariance)[1], rtol=1e-9)
    for wrong in (-1.0, np.nan, np.inf):
        assert formulas.energy(*given[:2], np.full(30, wrong), given[3]) == np.inf


SOLVERS = {
    "SparseVAE": ("sparse_vae.py", {"solver": "auto"}, 300),
    "mm": ("fixed_point.py", {"update": "mm"}, 3000),
    "em": ("fixed_point.py", {"update": "em"}, 6000),
    "mackay": ("fixed_point.py", {"update": "mackay"}, 3000),
    "gamma_map 1": ("gamma_map.py", {"update_mode": 1}, 2000),
    "gamma_map 2": ("gamma_map.py", {"update_mode": 2}, 2000),
    "ARDRegression": ("ard.py", {}, 500),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_reaches_the_same_minimum(name, benchmark):
    file, parameters, steps = SOLVERS[name]
    if name.startswith("gamma_map"):
        extras.require("mne")
    data = problem(1 if name == "ARDRegression" else 4)
    objective = benchmark("Objective", "objective.py")(noise_factor=2.0)
    objective.set_data(data.dictionary, data.responses, data.noise_variance, data.support)
    lowest = SparseVAE(noise_variance=2.0 * data.noise_variance, fit_intercept=False)
    lowest.fit(data.dictionary, data.responses)
    solver = benchmark("Solver", f"solvers/{file}")(**parameters)
    solver.set_objective(**objective.get_objective())
    values = []
    for count in (0, 5, steps):
        solver.run(count)
        figures = objective.evaluate_result(**solver.get_result())
        values.append(figures["value"])
    assert values[0] == objective.evaluate_result(**objective.get_one_result())["value"]
    assert values[0] > values[1] > values[2] - 1e-9
    tolerance = 2e-2 if name in {"em", "ARDRegression"} else 1e-4
    assert_allclose(values[2], lowest.energy_ / data.responses.shape[1], atol=tolerance)
    assert figures["support_f1"] >= 0.5


@pytest.mark.parametrize("name", ["simulated", "leadfield"])
def test_data_sets_fit_the_objective(name, benchmark):
    dataset = benchmark("Dataset", f"datasets/{name}.py")
    parameters = {key: values[0] for key, values in dataset.parameters.items()}
    small = {key: values[0] for key, values in dataset.test_parameters.items()}
    data = SimpleNamespace(**dataset(**parameters | small).get_data())
    assert data.dictionary.shape[0] == len(data.responses)
    assert len(data.support) == small["r"]
    objective = benchmark("Objective", "objective.py")(noise_factor=1.0)
    objective.set_data(**vars(data))
    assert np.isfinite(objective.evaluate_result(**objective.get_one_result())["value"])


def test_benchopt_runs_the_benchmark(tmp_path):
    extras.require("benchopt")
    folder = tmp_path / "benchmark_sbl"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("outputs", "__*__"))
    chosen = ["-d", "Simulated[d=10,kappa=15,r=2,n=3]", "-s", "SparseVAE", "-s", "ARDRegression"]
    command = [sys.executable, "-m", "benchopt", "run", str(folder), *chosen, "-n", "3", "-r", "1"]
    done = subprocess.run(
        [*command, "--no-plot", "--no-cache"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "ARDRegression takes one response" in done.stdout
    assert list(folder.glob("outputs/*.parquet")) or list(tmp_path.glob("outputs/*.parquet"))

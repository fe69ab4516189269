"""The public names: a contract that changes only by intention, and the same as in the reference."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import lucidae
from extras import require

ROOT = Path(__file__).parents[1]
NAMES = {
    "lucidae": """
        DropoutAutoencoder DropoutFactorization DropoutRegressor LinearAutoencoder
        SecondMoment SparseVAE __version__ certify datasets displays equalize
        equalize_pair load metrics save
    """,
    "lucidae.certificates": """
        Certificate Claim at_least at_most does_not_apply reported undecided
    """,
    "lucidae.datasets": """
        data_home fetch_mnist load_digits load_mnist make_array_snapshots
        make_linear_network make_meg_leadfield make_sparse_regression make_spectrum
        read_table
    """,
    "lucidae.displays": """
        ComponentCountDisplay ComponentsDisplay DropoutPathDisplay EnergySliceDisplay
        HistoryDisplay NoisePathDisplay RankPathDisplay RecoveryDisplay SourceDisplay
        SpectrumDisplay
    """,
    "lucidae.dropout": """
        CompletionPath CrossValidation DropoutAutoencoder DropoutFactorization
        DropoutObjective DropoutRegressor ExactSolution GaussianSource LinearProblem
        RankPath RegularizationPath SampleSource Weights certify_weights classify
        completion_path descend equalize equalize_pair equalized_critical_points
        rank_path regularization_path scalar_surface smallest_curvature solve solve_tied
    """,
    "lucidae.impute": """
        LowRankImputer
    """,
    "lucidae.linear": """
        BrockettRule ComponentCount ExpectedNestedDropout GeneralizedHebbianRule
        LinearAutoencoder LinearVAE METHODS Method MethodSettings NestedDropoutRule
        NonUniformL2 Objective Plan Reconstruction RotationAugmentedRule Rule Run
        Spectrum TiedWeights Trajectory UntiedWeights VariationalWeights best_penalties
        certify_components certify_weights count_components epochs_to_alignment
        geometric_prior make_method nonuniform_penalties paper_penalties register_method
        simulate uniform_penalties uniform_prior unregister_method
    """,
    "lucidae.metrics": """
        active_dimensions axis_alignment_distance equalization_variance exact_recovery
        imbalance importance_scores non_diagonality path_norm subspace_distance
        support_recovery
    """,
    "lucidae.mne": """
        SourceResult solver sparse_vae
    """,
    "lucidae.nn": """
        CollapseReport DiagonalGaussian DictionaryVAE DropoutPenalty Evidence
        FullGaussian GaussianHead GeometricSchedule HadamardGap LowRankGaussian
        NestedDropout NoiseVariance PrefixLoss ResNetDecoder ResNetEncoder ResidualBlock
        RotationAugmented VAE active_directions certificate_scalars certify_dropout
        certify_linear collapse_report collapse_scalars equalize_layers fit_vae hadamard_gap
        mean_scalars negative_log_likelihood order_dimensions prefix_losses
        prefix_scalars scalars_figure
    """,
    "lucidae.nn.callbacks": """
        CertificateMonitor CollapseMonitor PrefixMonitor
    """,
    "lucidae.scanpy": "pca",
    "lucidae.sparsity": """
        Energy EnergySlice NoisePath SparseBatch SparseGroupBatch SparseJoint SparseVAE
        certify_coefficients group_lasso joint_blocks noise_free_group_lasso noise_path
        register_posterior solve_batch solve_joint
    """,
}
"""`__all__` of the modules whose names are a contract."""

PARAMETERS = {
    "DropoutAutoencoder": """
        n_components dropout solver learning_rate schedule batch_size max_iter tol
        random_state warm_start verbose
    """,
    "DropoutFactorization": """
        n_components dropout solver handle_missing missing_values cv tol max_iter
        learning_rate schedule batch_size random_state
    """,
    "DropoutRegressor": """
        n_components dropout shrink alpha solver fit_intercept cv learning_rate schedule
        batch_size max_iter tol random_state warm_start n_jobs verbose
    """,
    "LinearAutoencoder": """
        n_components method solver optimizer learning_rate momentum l2 prior whiten
        batch_size tied init_scale max_iter tol random_state warm_start verbose
        handle_missing
    """,
    "SparseVAE": """
        posterior noise_variance solver groups group_covariance penalty cv
        response_covariance significance fit_intercept max_iter tol random_state
        warm_start n_jobs verbose
    """,
    "certify": "subject X y settings",
    "equalize": "U method",
    "equalize_pair": "U V",
    "load": "path",
    "save": "estimator path",
}
"""Parameters of the estimators and functions of `lucidae`, in their order."""

FITTED = {
    "LinearAutoencoder": """
        mean_ encoder_ decoder_ components_ explained_variance_
        explained_variance_ratio_ singular_values_ noise_variance_ n_components_ n_iter_
        status_ history_ certificate_ n_samples_seen_ fit partial_fit transform
        inverse_transform fit_transform score score_samples get_covariance get_precision
        get_feature_names_out
    """,
    "DropoutRegressor": """
        coef_ intercept_ left_ right_ rank_ threshold_ singular_values_ objective_
        certificate_ predict score partial_fit
    """,
    "DropoutAutoencoder": """
        left_ right_ rank_ threshold_ singular_values_ objective_ certificate_
        fit_transform transform inverse_transform partial_fit
    """,
    "DropoutFactorization": """
        left_ right_ certificate_ fit fit_transform transform inverse_transform
    """,
    "SparseVAE": """
        coef_ intercept_ relevance_ support_ noise_variance_ energy_ history_ n_iter_
        status_ certificate_ predict score posterior_covariance
    """,
    "SecondMoment": """
        of update merge mean covariance weight n_features spectrum save load
    """,
}
"""Attributes and methods of the classes of `lucidae`."""


def exported(module):
    """Return `__all__` of a module, read from its source, so that it need not be importable."""
    place = ROOT / "src" / Path(*module.split("."))
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError(f"{module} has no __all__")


@pytest.mark.parametrize("module", NAMES)
def test_a_name_comes_or_goes_only_by_intention(module):
    assert exported(module) == set(NAMES[module].split())


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_parameters_of_estimators_and_functions_are_a_contract(name):
    assert list(inspect.signature(getattr(lucidae, name)).parameters) == PARAMETERS[name].split()


@pytest.mark.parametrize("name", FITTED)
def test_the_attributes_and_methods_are_there(name):
    found = set(dir(getattr(lucidae, name)))
    assert not set(FITTED[name].split()) - found


REFERENCE = sorted(path for path in (ROOT / "docs" / "api").glob("*.md") if path.stem != "index")


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_the_reference_lists_all_public_names_and_they_can_be_imported(path):
    listed, text = {}, path.read_text(encoding="utf-8")
    for block in re.findall(r"```\{eval-rst\}\n(.*?)```", text, flags=re.DOTALL):
        module = re.search(r"currentmodule:: (\S+)", block)[1]
        listed.setdefault(module, []).extend(re.findall(r"^   (\w+)$", block, flags=re.MULTILINE))
    names = [name for found in listed.values() for name in found]
    assert len(names) == len(set(names))
    modules = set(listed) | {text.splitlines()[0].lstrip("# ")}
    if path.stem != "lucidae":
        modules -= {"lucidae"}  # estimators of a family are documented as names of the package
    wanted = set().union(*map(exported, modules))
    assert set(names) == wanted - {"__version__", "datasets", "displays", "metrics"}
    needed = {"lucidae.nn": "torch", "lucidae.nn.callbacks": "lightning", "lucidae.mne": "mne"}
    for module, found in listed.items():
        if module.startswith("lucidae_app"):
            needed[module] = "matplotlib"
        if module in needed:
            require(needed[module])
        for name in found:
            value = getattr(importlib.import_module(module), name)
            assert value.__doc__ or not callable(value) or name == "Callback", name

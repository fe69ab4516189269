"""Certificates of weights and components that were not fitted here, and the data they need.

`certify_weights` judges a pair of weights, `certify_components` a fitted object such as
scikit-learn's PCA, and `data_of` turns data of any kind into what the verifier reads.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, is_array, to_numpy
from lucidae.certificates.bounds import TINY, epsilon
from lucidae.certificates.claims import Certificate, Claim, certifies, check_settings
from lucidae.certificates.rows import SMALL_ROWS, Data, GivenRows, RereadRows
from lucidae.certificates.sketch import Sketch
from lucidae.linear import verify
from lucidae.linear.claims import LinearFigures, certificate, claims, evidence
from lucidae.linear.methods import Method, Options, TrainedWeights
from lucidae.linear.missing import unmasked
from lucidae.linear.objectives import Reconstruction, RotationAugmentedRule
from lucidae.linear.references import known_spectrum
from lucidae.linear.verify import find_leading, mean_difference
from lucidae.linear.weights import TiedWeights, UntiedWeights
from lucidae.moments import SecondMoment
from lucidae.rows.kinds import AlignedBlocks, LoadedRows, aligned_blocks, in_memory
from lucidae.rows.operator import EXACT_FEATURES, BlockRows, MomentRows, RowOperator
from lucidae.rows.passes import Passes, fold, load_rows, no_moment, nothing_read
from lucidae.validation import check_rows, check_weights

Vector = np.ndarray[Any, Any]

LOADED_BYTES = 2**28
"""Size up to which data with more than 8192 features are loaded, because they would be read many
times: 256 mebibytes."""

# Names of those claims about a linear autoencoder that also apply to principal components.
JUDGED = ("subspace", "alignment", "order", "gap", "eigengap", "sampling", "leverage")

# Replacements that turn a statement about autoencoder weights into one about components.
WORDS = {
    "the decoder spans": "the components span",
    "a decoder column": "a component",
    "latent": "component",
    "the loss is its global minimum": "the reconstruction error is the smallest possible",
}

# Threshold of the claim `attributes`, which randomised solvers reach. It is compared with the
# difference of the mean of each feature, in its standard deviations, and with the relative
# differences of the other attributes. If the claim holds, it fails after one of these is changed by
# one part in a thousand.
ATTRIBUTES = 5e-4

# Number of rounding errors that are granted to a mean of another library, of its own dtype.
SUMMED = 1e4

# Smallest number of rounding errors that are granted to a variance.
ROUNDINGS = 8


@certifies("linear")
def certify_weights(
    encoder: Any,
    decoder: Any,
    X: Any,
    *,
    sample_weight: Any = None,
    noise_variance: float | None = None,
    **settings: Any,
) -> Certificate:
    """Judge how close a given encoder and decoder are to the optimum for given data.

    The weights may have been trained by any program.

    Parameters
    ----------
    encoder : array of shape (k, m)
        Encoder weights: latent i of a centred row x is the product of row i and x.
    decoder : array of shape (m, k)
        Decoder weights: the reconstruction of x is the decoder times the latents.
    X : array-like of shape (n, m) or SecondMoment
        The rows of data, or their second moment. Rows are centred before they are used.
    sample_weight : array-like of shape (n,), optional
        Weight of each row, as if the row occurred that many times; by default 1 for all rows.
    noise_variance : float, optional
        Observation variance of the decoder. Required for ``method="linear_vae"``, whose posterior
        variances are set to their optimum; not used otherwise.
    **settings
        Arguments of `LinearAutoencoder` with which the weights were trained: `method`, `l2`,
        `prior`, `tied`, `tol`, `learning_rate`, `optimizer`, `momentum`.

    Returns
    -------
    Certificate
        The claims with their verdicts.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.linear import certify_weights
    >>> X = np.random.default_rng(0).standard_normal((100, 3)) * [3.0, 2.0, 1.0]
    >>> axes = np.linalg.svd(X - X.mean(0), full_matrices=False)[2][:2]
    >>> certify_weights(axes, axes.T, X, method="rag").holds
    True
    >>> turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    >>> certify_weights(turn @ axes, axes.T @ turn.T, X, method="rag")["alignment"].holds
    False
    """
    allowed = [name for name in _SETTINGS if name != "n_components"]
    check_settings(settings, ["sample_weight", "noise_variance", *allowed], "a pair of weights")
    rows, columns = check_rows(encoder, name="encoder"), check_rows(decoder, name="decoder")
    options = Options(rows.shape[0], **settings)
    if tuple(columns.shape) != tuple(rows.shape)[::-1]:
        raise ValueError(
            f"encoder has shape {tuple(rows.shape)} and decoder {tuple(columns.shape)}, expected "
            "shapes (k, m) and (m, k) with k latents and m features."
        )
    data = data_of(*checked_data(X, sample_weight))
    _check_shape(rows.shape, data.n_features, "encoder")
    spectrum = None
    if options.needs_spectrum:
        known = find_leading(data, to_numpy(as_double(rows)))[1]
        if not known.complete:
            raise ValueError(
                "l2='auto' was given for weights with more than 1024 features, for which not all "
                "eigenvalues are computed: give l2, the penalties of the training."
            )
        spectrum = known_spectrum(known.values.value, data)
    method = options.make(rows.shape[0], spectrum)
    layers = to_numpy(as_double(rows)), to_numpy(as_double(columns)).T
    tied = method.tied and np.array_equal(*layers)
    weights = TiedWeights(layers[0]) if tied else UntiedWeights(*layers)
    weights = method.objective.completed(weights, noise_variance)
    figures = LinearFigures(TrainedWeights(weights, method), data, options)
    return certificate(f"weights(method={method.name!r})", figures)


# Settings of weights that were not trained here.
NOT_TRAINED = Options()

_SETTINGS = tuple(inspect.signature(Options).parameters)


def _check_shape(shape: tuple[int, ...], m: int, name: str) -> None:
    """Raise an error unless there are as many columns as features m, and no more rows than that."""
    if shape[1] != m:
        raise ValueError(
            f"{name} has {shape[1]} columns, but X has {m} features: the two numbers must be equal."
        )
    if shape[0] > m:
        raise ValueError(
            f"{name} has {shape[0]} rows, but X has {m} features, and so only {m} principal "
            f"components: give at most {m} rows."
        )


def checked_data(
    X: Any, sample_weight: Any, *, missing: bool = False, verbose: bool | str = "auto"
) -> tuple[RowOperator, Sketch | None]:
    """Return validated data, and the sketch of rows that are read in blocks, which tests them.

    NaN raises an error unless `missing` is true and the rows are dense and in memory.
    """
    if isinstance(X, SecondMoment):
        return MomentRows(X), None
    if not (in_memory(X) and in_memory(sample_weight, "sample_weight")):
        blocks = X if isinstance(X, AlignedBlocks) else aligned_blocks(X, None, sample_weight)
        small = loaded_rows(blocks, missing=missing, verbose=verbose)
        if small is None:
            return read_blocks(blocks, verbose=verbose)
        X, sample_weight = small.rows, small.weights
    missing = missing and not scipy.sparse.issparse(X)
    X = check_rows(unmasked(X), finite="allow-nan") if missing else check_rows(X)
    return RowOperator.of(X, check_weights(sample_weight, X)), None


def data_of(rows: RowOperator, sketch: Sketch | None = None, origin: str = "given") -> Data:
    """Return data of any kind in the form that the verifier reads.

    Small rows are factorised. Otherwise a second moment is tested by a sketch of the same rows;
    that of rows in memory is computed if it is small. `origin` says where a moment comes from that
    nothing tests (`Data.origin`).
    """
    moment = rows.moment
    again: GivenRows | RereadRows | None = None
    if isinstance(rows, BlockRows):
        again = RereadRows(rows.passes, rows.n_features)
    if rows.rows is not None:
        given = GivenRows(rows.rows, rows.weights)
        n, m = given.shape
        if n * m <= SMALL_ROWS:
            data = Data.of_rows(given)
            data = data.refactored() or data
            return data if moment is None else data.beside_moment(moment.covariance)
        if moment is None and m <= verify.DENSE_FEATURES:
            moment = SecondMoment.of(given.X, given.weights)
        if moment is not None and sketch is None:
            sketch = Sketch.of(given.X, given.weights)
        again = given
    if moment is None:
        assert again is not None, "data without a moment have rows"
        return Data.of_rows(again)
    return Data.of_moment(moment.mean, moment.covariance, moment.weight, sketch, again, origin)


@certifies("components")
def certify_components(subject: Any, X: Any, *, sample_weight: Any = None) -> Certificate:
    """Judge how close the `components_` of a fitted object are to the principal components of `X`.

    Claims are made about the subspace that the components span, each principal axis, the order of
    the components, and the reconstruction error. If the object has `mean_`, the rows are centred
    first; otherwise (scikit-learn's `TruncatedSVD`) they are used as they are. If present, `mean_`,
    `explained_variance_`, `explained_variance_ratio_`, `singular_values_` and `noise_variance_` are
    compared with the data; the last one not if the object was fitted in several batches.

    Parameters
    ----------
    subject : object
        A fitted object such as scikit-learn's `PCA`, `IncrementalPCA` or `TruncatedSVD`, whose
        `components_` has shape (k, m).
    X : array-like of shape (n, m) or SecondMoment
        The rows of data, or their second moment.
    sample_weight : array-like of shape (n,), optional
        Weight of each row, as if the row occurred that many times; by default 1 for all rows.

    Returns
    -------
    Certificate
        The claims with their verdicts.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.decomposition import PCA
    >>> from lucidae import certify
    >>> X = np.random.default_rng(0).standard_normal((200, 4)) * [4, 3, 2, 1]
    >>> pca = PCA(2).fit(X)
    >>> certify(pca, X).holds
    True
    >>> pca.components_ = pca.components_[::-1]
    >>> [claim.name for claim in certify(pca, X) if claim.holds is False]
    ['order', 'attributes']
    """
    if X is None:
        raise ValueError(
            f"certify was called with {type(subject).__name__} but without data: give the rows X, "
            "or their SecondMoment."
        )
    given = subject.components_
    try:
        rows = check_rows(given if is_array(given) else np.asarray(given), name="components_")
    except (TypeError, ValueError) as error:
        raise ValueError(f"components_ is not a matrix of finite numbers: {error}") from error
    components = to_numpy(as_double(rows))
    centred = data_of(*checked_data(X, sample_weight))
    _check_shape(components.shape, centred.n_features, "components_")
    mean = getattr(subject, "mean_", None)
    data = centred.about_zero() if mean is None else centred
    method = Method("rag", RotationAugmentedRule(), Reconstruction(), tied=True)
    outcome = TrainedWeights(TiedWeights(components), method)
    figures = LinearFigures(outcome, data, NOT_TRAINED)
    judged = []
    for claim in claims(figures, JUDGED):
        statement = claim.statement
        for old, new in WORDS.items():
            statement = statement.replace(old, new)
        advice = claim.advice.replace("latent", "component")
        judged.append(replace(claim, statement=statement, advice=advice))
    attributes = _attributes_claim(subject, components, mean, centred)
    title = type(subject).__name__ + (" (rows not centred)" if mean is None else "")
    return Certificate(title, (*judged, attributes), evidence(figures))


def _attributes_claim(subject: Any, components: Vector, mean: Any, data: Data) -> Claim:
    """Return the claim that the attributes of the subject besides `components_` agree with data.

    An attribute may have several values. For n rows, PCA divides sums of squares by n − 1 and
    TruncatedSVD by n. For the noise variance of m features and k components scikit-learn divides by
    min(n, m) − k, and subtracts from the total variance either the stated variances or those along
    the components. IncrementalPCA computes it from what the last batch leaves, so that it depends
    on the batches and not on the data alone.
    """
    (k, m), n, total = components.shape, data.weight, max(data.trace, TINY)
    along = np.sum(data.apply(components) * components, axis=1)
    top, unbiased = float(np.max(along)), n / (n - 1.0) if n is not None and n > 1.0 else 1.0
    # 1) The values that each attribute may have, and the size of their rounding errors.
    expected: dict[str, tuple[list[Any], float]] = {
        "explained_variance_": ([along, unbiased * along], unbiased * top),
        "explained_variance_ratio_": ([along / total], top / total),
    }
    if n is not None:
        squares = along if mean is not None else along + (components @ data.mean.value) ** 2
        expected["singular_values_"] = [n * squares], n * float(np.max(squares))
    if n is not None and getattr(subject, "batch_size_", n) >= n:
        stated = _finite(getattr(subject, "explained_variance_", along), along.shape)
        count = max(1, min(n, m) - k)
        expected["noise_variance_"] = (
            [
                max(0.0, factor * data.trace - float(np.sum(part))) / count * (min(n, m) > k)
                for factor in (1.0, unbiased)
                for part in ([factor * along] + ([] if stated is None else [stated[0]]))
            ],
            data.trace / count,
        )
    # 2) The differences of the given values to the nearest of these.
    found = {}
    for name, (values, size) in expected.items():
        if (given := getattr(subject, name, None)) is not None:
            power = 2 if name == "singular_values_" else 1  # of small ones, squares have the digits
            found[name] = _difference(given, values, 4 * max(m, ROUNDINGS) * size, power)
    if mean is not None:
        known = _finite(mean, data.mean.value.shape)
        found["mean_"] = (
            math.inf if known is None else mean_difference(known[0], data, SUMMED * known[1])
        )
    text = Claim(
        "attributes",
        "the other attributes agree with the data (largest relative difference)",
        "definition of the attributes",
    )
    if not found:
        why = f"{type(subject).__name__} has neither mean_ nor variances of its components."
        return replace(text, advice=why)
    wrong = max(found, key=lambda name: found[name])
    advice = f"{wrong} does not agree with X: it was changed, or X is not the data passed to fit."
    return text.judged(found[wrong], ATTRIBUTES, advice)


def _difference(given: Any, values: list[Any], rounding: float, power: int) -> float:
    """Return the relative difference of an attribute, to this power, to the nearest of its values.

    Differences of so many roundings do not count. A relative difference d of a singular value is
    one of about 2d of its square.
    """
    found = _finite(given, np.shape(values[0]))
    if found is None or np.any(found[0] < 0.0):
        return math.inf
    differences = []
    for expected in values:
        apart = np.maximum(np.abs(found[0] ** power - expected) - rounding * found[1], 0.0)
        with np.errstate(over="ignore"):  # of a direction without variance
            differences.append(float(np.max(apart / np.maximum(expected, TINY))))
    return min(differences) / power


def _finite(given: Any, shape: tuple[int, ...]) -> tuple[Vector, float] | None:
    """Return an attribute as a float64 array, and the machine epsilon of its dtype."""
    try:
        host = to_numpy(given) if is_array(given) else np.asarray(given)
        found = np.asarray(host, dtype=float)
    except (TypeError, ValueError):
        return None
    if found.shape != shape or not np.all(np.isfinite(found)):
        return None
    return found, epsilon(host.dtype if host.dtype.kind == "f" else float)


def loaded_rows(
    data: AlignedBlocks, *, missing: bool = False, verbose: bool | str = "auto"
) -> LoadedRows | None:
    """Load data that are read in blocks into memory; return None if they are too large.

    NaN raises an error unless `missing` is true; `verbose` decides whether progress is shown.
    """
    wide = data.rows.n_features > EXACT_FEATURES
    leaf, most = (no_moment, LOADED_BYTES) if wide else (None, None)
    return load_rows(data, leaf, most_bytes=most, missing=missing, verbose=verbose)


class SketchedMoment(NamedTuple):
    """The second moment of rows, and a sketch of the same rows, which tests it."""

    moment: SecondMoment
    sketch: Sketch

    def merge(self, other: SketchedMoment) -> SketchedMoment:
        """Return both for the rows of this and of `other` together."""
        return SketchedMoment(self.moment.merge(other.moment), self.sketch.merge(other.sketch))


def _sketched_rows(rows: Any, _targets: Any, weights: Any) -> SketchedMoment:
    return SketchedMoment(SecondMoment.of(rows, weights), Sketch.of(rows, weights))


def read_blocks(
    data: AlignedBlocks, start: SecondMoment | None = None, verbose: bool | str = "auto"
) -> tuple[RowOperator, Sketch | None]:
    """Return data that are read in blocks, and their sketch.

    One pass computes second moment and sketch, unless there are so many features that the data are
    read for every product. `start` is the moment of rows that were read before, which is taken as
    data.
    """
    if data.rows.n_features > EXACT_FEATURES:
        if not data.repeatable:
            raise ValueError(
                f"X has {data.rows.n_features} features. With so many, the data must be read "
                "several times, but an iterator can be read only once: give a file, a list of "
                "batches (to fit_batches), a memory map, or a function that returns a new "
                "iterator, or call partial_fit with each batch."
            )
        return BlockRows(Passes(data, verbose)), None
    before: SketchedMoment | None = None
    if start is not None:
        known = Sketch.given(start.mean, start.covariance, start.weight)
        before = SketchedMoment(start, known)
    found: SketchedMoment | None
    found = fold(data, _sketched_rows, SketchedMoment.merge, start=before, verbose=verbose)
    if found is None or found is before:
        raise nothing_read(data)
    if data.repeatable and start is None:
        return BlockRows(Passes(data, verbose), found.moment), found.sketch
    return MomentRows(found.moment, data.rows.reference), found.sketch

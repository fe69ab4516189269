"""Mutants that no test can kill, with the reasons: `mutation.py` does not list them as survivors.

Each place is the name of a function and the changed expression, as the tool prints it.
"""

EXPLAINED = {
    "linear.objectives": {
        "the constant stands in a quotient that is not selected": [
            ("NonUniformL2.squared_lengths", "where_set(values, ~nonzero, 2.0)"),
            ("NonUniformL2.minimum", "where_set(values, ~nonzero, 2.0)"),
        ],
        "the ranks of k penalties reach the first k eigenvalues alone": [
            ("NonUniformL2.zero_latents", "values[:len(penalties) + 1]"),
        ],
        "both sides give the same number at equality": [
            ("LinearVAE.minimizer", "values < noise"),
            ("LinearVAE.minimum", "values <= noise"),
        ],
        "the clipped numbers are 1 − 1/x with x > 0, which is below 1": [
            (
                "LinearVAE.preconditioned",
                "clamped(direction.log_variances / curvature, -1.0, 2.0)",
            ),
            (
                "LinearVAE.preconditioned",
                "clamped(2 * direction.log_noise / weights.encoder.shape[-1], -1.0, 2.0)",
            ),
        ],
        "1 − x with x > 0 is below 1": [
            ("LinearVAE.preconditioned_direction", "clamped(1 - noise / power, -1.0, 2.0)"),
            ("LinearVAE.preconditioned_direction", "clamped(1 - misfit, -1.0, 2.0)"),
        ],
        "zeros give the same zeros": [
            ("LinearVAE.preconditioned_direction", "0.0 / misfit"),
        ],
        "the weights have two axes, of which the last one is the second": [
            ("LinearVAE.completed", "xp.sum(weights.atoms * weights.atoms, axis=+1)"),
        ],
    },
    "dropout.objectives": {
        "the matrix is square": [
            ("LinearProblem.is_white", "self.inputs.shape[1]"),
        ],
        "the limit is a round number: a sum equal to it may be on either side": [
            ("_checked_energy", "energy <= SMALLEST_ENERGY"),
        ],
        "the squares of a matrix whose largest entry is between 1 and 2 do not overflow": [
            ("_checked_energy", "size >= 1.0"),
            ("_checked_energy", "size > 2.0"),
        ],
    },
    "moments": {
        "zeros give the same zeros": [
            ("covariance_spectrum", "values >= 0"),
            ("covariance_spectrum", "0.0 * 1.0"),
        ],
        "the array only tells the library": [
            ("SecondMoment._empty", "np.empty(1)"),
        ],
        "the limit is a round number: a sum equal to it may be on either side": [
            ("SecondMoment._checked", "squares <= SMALLEST_SCATTER"),
        ],
        "a file without this array is refused because of its names": [
            ("SecondMoment.load", "m = stored['center'].size if 'center' in stored else 1"),
        ],
        "the matrix is square": [
            ("covariance_spectrum", "covariance.shape[1]"),
        ],
        "rows are copied where none has weight zero": [
            ("_weighted_rows", "weights < 0"),
            ("_weighted_rows", "weights > 1"),
        ],
    },
    "row_sums": {
        "zeros give the same zeros": [
            ("_double_part", "0.0 * 1.0"),
        ],
        "more attempts are allowed; the third centre is the mean up to rounding": [
            ("dense_sums", "range(4)"),
            ("dense_sums", "range(6)"),
        ],
        "both sides give an accurate centre at equality": [
            ("_first_center", "mean * mean < allowed"),
        ],
        "blocks have more rows than one": [
            ("_blocks", "least = 1 if on_host(X) else DEVICE_ENTRIES // X.shape[1]"),
        ],
    },
    "sparsity.objectives": {
        "the matrices are square": [
            ("DiagonalCovariance.concavity", "metric.shape[+1]"),
            ("DiagonalCovariance.concavity", "metric.shape[-2]"),
        ],
    },
    "linear.penalties": {
        "accuracy of a search, below that of the result": [
            ("_paper_sequence", "scipy.optimize.brentq(excess, low, high, xtol=2e-13)"),
            ("_best_distinct", "0.02 * 10.0 ** (-DIGITS)"),
            ("_best_distinct", "1.01 * 10.0 ** (-DIGITS)"),
            ("_best_distinct", "0.01 + 10.0 ** (-DIGITS)"),
            ("_best_distinct", "0.01 * 1.0"),
            ("_best_distinct", "10.0 * -DIGITS"),
            ("_highest_floor", "0.001 * accuracy / high"),
            ("_highest_floor", "0.001 * accuracy * 1.0"),
            ("_highest_floor", "1.001 * accuracy"),
            ("_highest_floor", "0.002 * accuracy"),
            ("_next_penalty", "0.001 * accuracy / following"),
            ("_next_penalty", "0.001 * accuracy * 1.0"),
            ("_next_penalty", "1.001 * accuracy"),
            ("_next_penalty", "0.002 * accuracy"),
            ("_highest_floor", "3 * accuracy"),
            ("_highest_floor", "4 * accuracy"),
            ("_best_distinct", "11.0 ** (-DIGITS)"),
            ("_best_distinct", "20.0 ** (-DIGITS)"),
        ],
        "ends of the trial values, which are refined around the best": [
            ("_best_distinct", "0.002 / k ** 2"),
            ("_best_distinct", "k * 2"),
            ("_best_distinct", "k ** 3"),
            ("_best_distinct", "k ** 4"),
            ("_best_distinct", "1 - 2e-06"),
        ],
        "a longer interval is searched, or one that begins a trial later where all is flat": [
            ("_best_distinct", "max(best - 1, 1)"),
            ("_best_distinct", "best - 2"),
            ("_best_distinct", "best + 2"),
            ("_highest_floor", "4 + inside[-1]"),
            ("_highest_floor", "4 * 1.0"),
            ("_highest_floor", "5 * inside[-1]"),
            ("_highest_floor", "8 * inside[-1]"),
            ("_highest_floor", "inside[+1]"),
            ("_highest_floor", "inside[-2]"),
        ],
        "the loop that follows lowers the floor until it is reached, by a few times the accuracy": [
            ("_highest_floor", "1 + margin"),
            ("_highest_floor", "2 - margin"),
            ("_highest_floor", "floor / (1 - margin)"),
            ("_highest_floor", "floor + (1 - margin)"),
            ("_highest_floor", "floor * 1.0"),
            ("_highest_floor", "9 * (inside[-1] - chosen[-1])"),
            ("_highest_floor", "16 * (inside[-1] - chosen[-1])"),
            ("_highest_floor", "margin <= 1.0"),
            ("_highest_floor", "margin < 2.0"),
            ("_highest_floor", "8 * (inside[-1] - chosen[-1]) < floor * (1 - margin)"),
            ("_highest_floor", "margin *= 3"),
            ("_highest_floor", "margin *= 4"),
        ],
        "equal penalties have a flat direction: the excess is negative, up to rounding": [
            ("_next_penalty", "excess(last) > 0.0"),
            ("_next_penalty", "excess(last) >= 1.0"),
        ],
        "an interval that contains the root is found from any start": [
            ("_bracket", "excess(low) <= 0"),
            ("_bracket", "excess(high) >= 0"),
            ("_bracket", "low, high = (+2.0, 2.0)"),
            ("_bracket", "low, high = (-3.0, 2.0)"),
            ("_bracket", "low, high = (-4.0, 2.0)"),
            ("_bracket", "low, high = (-2.0, 3.0)"),
            ("_bracket", "low, high = (-2.0, 4.0)"),
            ("_bracket", "low -= 5.0"),
            ("_bracket", "low -= 8.0"),
            ("_bracket", "high += 5.0"),
            ("_bracket", "high += 8.0"),
        ],
        "the digits of numbers in an error": [
            ("_shortened", "np.array2string(values, threshold=7, precision=3)"),
            ("_shortened", "np.array2string(values, threshold=12, precision=3)"),
            ("_shortened", "np.array2string(values, threshold=6, precision=4)"),
            ("_shortened", "np.array2string(values, threshold=6, precision=6)"),
        ],
        "where this loop is needed, the last two penalties agree up to a part in 1e8": [
            ("_highest_floor", "chosen[-2]"),
        ],
        "any finite number takes the place of infinity": [
            (
                "_best_distinct",
                "min(condition_number(AlignedPoint.nonuniform(values, trial)), 2e+300)",
            ),
        ],
        "both sides give the same numbers at equality": [
            ("best_penalties", "unit >= 0"),
            ("best_penalties", "k >= 1"),
            ("_next_penalty", "last > following"),
            ("_next_penalty", "excess(following) <= 0.0"),
        ],
        "the limit is a rounding error: an eigenvalue equal to it may be on either side": [
            ("best_penalties", "values[:k] >= rounding * unit"),
            ("best_penalties", "outside <= inside[-1] * (1 - TIE)"),
            ("best_penalties", "inside[1:] <= inside[:-1] * (1 - TIE)"),
        ],
    },
    "linear.hessian": {
        "the constant stands in a quotient that is not selected": [
            ("AlignedPoint.nonuniform", "np.where(nonzero, leading, 2.0)"),
        ],
        "zeros give the same zeros": [
            ("AlignedPoint.nested", "0 / ones"),
            ("escape_blocks", "2 * p * e ** 2 * own + 2 * decay - 0 * other"),
            ("escape_blocks", "2 * p * e ** 2 * own + 2 * decay + 0.0"),
            ("escape_blocks", "0 * 1.0"),
        ],
        "the limit is a rounding error: an eigenvalue equal to it may be on either side": [
            ("condition_number", "eigenvalues >= 1e-12 * largest"),
        ],
        "the matrices are symmetric": [
            (
                "_pairs",
                "np.stack([np.stack([first, off], -1), np.stack([off, second], -1)], +2)",
            ),
        ],
    },
    "dropout.equalize": {
        "zero weights are divided by any number": [
            (
                "equalize_pair",
                "tops = [largest(as_double(part)) or 2.0 for part in (left, right)]",
            ),
        ],
        "the loop has ended before": [
            ("level_diagonal", "len(entries) + 1"),
        ],
        "the limit is a rounding error: a difference equal to it may be on either side": [
            ("level_diagonal", "low[i] >= high[j] - SPREAD * level"),
        ],
        "either of the two entries may be set to the mean; the other choice only turns further": [
            ("level_diagonal", "level - entries[i] >= entries[j] - level"),
            ("level_diagonal", "level - entries[i] < entries[j] - level"),
            ("level_diagonal", "level + entries[i]"),
            ("level_diagonal", "entries[j] + level"),
        ],
        "the matrix is square": [
            ("level_diagonal", "gram.shape[1]"),
            ("level_by_eigenvectors", "gram.shape[1]"),
            ("level_by_hadamard", "gram.shape[1]"),
            ("hadamard", "matrix.shape[1]"),
        ],
    },
    "dropout.reduction": {
        "the size is compared with 1e70 alone": [
            ("DataUnits.weights", "np.abs(part).max(initial=1.0)"),
        ],
        "a column of zeros is divided by any number": [
            ("_reduce_moment", "deviations[deviations == 0] = 2.0"),
            ("_reduce_rows", "deviations[deviations == 0] = 2.0"),
        ],
        "the triangle has `rank` rows, so that its diagonal ends there": [
            ("_reduce_moment", "triangle[:, :rank + 1]"),
        ],
        "a pivot equal to the limit may be on either side of it": [
            ("_reduce_rows", "pivots >= max(level, data.resolution)"),
            ("_reduce_rows", "pivots >= level"),
        ],
        "the columns have unit length, so that the largest pivot is 1 (or all are zero)": [
            (
                "_reduce_rows",
                "RANGE_FACTOR * size * EPSILON / max(pivots.max(initial=0.0), 1e-300)",
            ),
            ("_reduce_rows", "RANGE_FACTOR * size * EPSILON * 1.0"),
            ("_reduce_rows", "max(pivots.max(initial=0.0), 1.0)"),
            ("_reduce_rows", "max(pivots.max(initial=0.0), 2e-300)"),
            ("_reduce_rows", "pivots.max(initial=1.0)"),
        ],
        "zeros give the same zeros": [
            ("_summed", "0.0 * 1.0"),
            ("_centers", "0.0 * 1.0"),
            ("_centers", "2.0 * part"),
        ],
        "one number stands for a column of equal numbers": [
            ("_row_blocks", "0.0 * 1.0"),
        ],
        "the factorisation before the singular values saves work alone": [
            ("_condition", "2 * triangle.shape[0] <= triangle.shape[1]"),
            ("_condition", "2 * triangle.shape[0] > triangle.shape[1]"),
            ("_condition", "2 / triangle.shape[0]"),
            ("_condition", "2 + triangle.shape[0]"),
            ("_condition", "2 * 1.0"),
            ("_condition", "3 * triangle.shape[0]"),
            ("_condition", "4 * triangle.shape[0]"),
            ("_condition", "triangle.shape[1]"),
        ],
        "the rows after the triangle are zero": [
            ("_condition", "scipy.linalg.qr(triangle.T, mode='r')[0][:triangle.shape[0] + 1]"),
        ],
    },
    "sparsity.theory": {
        "the numerator of the quotient is zero, or the quotient is not selected": [
            ("implied_relevance", "norms >= 0"),
            ("implied_relevance", "np.where(norms > 0, lengths, 2.0)"),
        ],
        "the limit is a tolerance: a number equal to it may be on either side": [
            ("position_of", "spread < least"),
            ("position_of", "smallest >= least"),
            ("position_of", "outside * spread / 3.0 < least"),
            (
                "_by_projection",
                "_smallest_eigenvalue(rest, used, size) >= least ** 2 + rounding",
            ),
            ("_rank", "values >= rounding"),
        ],
        "the products of a square matrix with its transpose have the same eigenvalues": [
            ("_rank", "unit.shape[0] > unit.shape[1]"),
        ],
        "the largest eigenvalue of a Gram matrix of unit columns is at least 1": [
            ("_rank", "values.max(initial=1.0)"),
        ],
    },
    "sparsity.penalties": {
        "zeros give the same zeros": [
            ("ridge_relevance", "0.0 * 1.0"),
        ],
    },
    "sparsity.updates": {
        "zeros give the same zeros": [
            ("expectation_maximization", "0.0 * 1.0"),
        ],
    },
    "sampling": {
        "zeros give the same zeros": [
            ("_squared_sines", "np.fill_diagonal(gaps, 2.0)"),
        ],
        "one row never exceeds noise: its eigenvalue is at most the sum of all": [
            ("_exceeds_noise", "n_rows < 1"),
        ],
        "equality is a rounding error": [
            (
                "_exceeds_noise",
                "values[0] * n_rows >= values.mean() * (centre + TRACY_WIDOM * spread)",
            ),
        ],
    },
    "dropout.theory": {
        "the rank is 0 if all singular values are zero": [
            ("shrink", "0.0 + singular_values"),
            ("shrink", "1.0 * singular_values"),
        ],
        "the first gap is multiplied by zero": [
            ("_excess", "0.0 + candidates[:1]"),
            ("_excess", "1.0 * candidates[:1]"),
        ],
        "the first entry of a descending vector is the largest": [
            ("rank_tolerance", "singular_values[:1 + 1]"),
            ("rank_tolerance", "singular_values[:2]"),
        ],
        "both sides give the same number at equality, or equality is a rounding error": [
            ("small_dropout_bound", "eigenvalues <= 0"),
            ("code_map", "w >= level"),
        ],
        "a column of zeros stays zero, whatever multiplies it": [
            ("code_map", "lengths >= 0"),
        ],
        "the constant stands in a quotient that is not selected": [
            ("code_map", "1.0 - lengths"),
            ("code_map", "1.0 + 0.0"),
            ("code_map", "2.0 + lengths"),
            ("code_map", "1.0 - w"),
            ("code_map", "2.0 + w"),
        ],
        "a singular value at rounding level takes the place of zero": [
            ("code_map", "0.0 + w"),
            ("code_map", "0.0 * 1.0"),
            ("code_map", "1.0 * w"),
        ],
    },
    "metrics._linear": {
        "the distance exceeds 1 by rounding alone": [
            ("alignment_of", "xp.clip(1.0 - xp.mean(closest, axis=-1), 0.0, 2.0)"),
            ("subspace_distance", "xp.clip(distance, 0.0, 2.0)"),
        ],
        "the limit is a round number: a difference equal to it may be on either side": [
            ("_is_orthonormal", "largest(directions) >= 1.0 + ORTHONORMAL_TOLERANCE"),
            (
                "_is_orthonormal",
                "largest(gram - eye_like(gram.shape[-1], gram)) < ORTHONORMAL_TOLERANCE",
            ),
        ],
        "the products decide, after a quick test that has not": [
            ("_is_orthonormal", "2.0 + ORTHONORMAL_TOLERANCE"),
        ],
        "the matrix is square": [
            ("_is_orthonormal", "gram.shape[-2]"),
            ("non_diagonality", "square.shape[-2]"),
        ],
    },
    "metrics._sparsity": {
        "the constant stands in a quotient that is not selected": [
            ("support_recovery", "where_set(count, count == 0, 2.0)"),
        ],
        "means between 1 and 2 need no division against overflow": [
            ("_varies", "peaks >= 1"),
            ("_varies", "peaks > 2"),
        ],
    },
}

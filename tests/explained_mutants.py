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
            ("LinearVAE.retract", "weights.log_noise <= floor"),
            ("LinearVAE.minimizer", "values < noise"),
            ("LinearVAE.minimum", "values <= noise"),
        ],
        "the clipped numbers are 1 − 1/x with x > 0, which is below 1": [
            (
                "LinearVAE.preconditioned",
                "xp.clip(direction.log_variances / curvature, -1.0, 2.0)",
            ),
            (
                "LinearVAE.preconditioned",
                "xp.clip(2 * direction.log_noise / weights.encoder.shape[-1], -1.0, 2.0)",
            ),
        ],
        "the weights have two axes, of which the last one is the second": [
            ("LinearVAE.completed", "xp.sum(weights.atoms * weights.atoms, axis=+1)"),
        ],
    },
}

"""Epochs to alignment against the number of latents."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Scale
from lucidae.experiments.linear.race import Race
from lucidae.experiments.verdicts import AtMost, Ordered, Outweighs, Reported

# Bao et al. 2020, Table 4: k ≤ 50, and more.
RATES = {
    ("nonuniform_l2", "nesterov"): (1e-3, 1e-3),
    ("rag", "nesterov"): (1e-4, 1e-4),
    ("nested_dropout", "nesterov"): (1e-3, 1e-3),
    ("expected_nested_dropout", "nesterov"): (1e-3, 1e-3),
    ("linear_vae", "nesterov"): (3e-4, 3e-4),
    ("nonuniform_l2", "adam"): (3e-3, 3e-3),
    ("nested_dropout", "adam"): (1e-2, 3e-3),
    ("expected_nested_dropout", "adam"): (3e-3, 1e-2),
    ("linear_vae", "adam"): (3e-3, 1e-3),
}
EVERY_SIZE = (2, 5, 10, 20, 50, 100, 200, 300, 400, 500)

EXPERIMENT = Experiment(
    name="lae-scaling",
    title="What more latents cost",
    reference="Bao et al. 2020, Figure 4",
    shows="epochs to an axis-alignment distance of 0.3 against the number of latents",
    claim="The non-uniform penalty and expected nested dropout scale badly with the number of "
    "latents, rotation-augmented gradient well; Adam does not cure it.",
    scales={
        "smoke": Scale(
            Race("small-gaussian", (2, 5, 10, 20), RATES, limit=2500),
            (
                AtMost("epochs/rag/nesterov", 2500, at="everywhere", says="RAG always arrives"),
                Outweighs(
                    "epochs/nonuniform_l2/nesterov",
                    "epochs/rag/nesterov",
                    3.0,
                    at=20,
                    says="the non-uniform penalty is slower than RAG",
                ),
                Ordered(
                    ("exponent/expected_nested_dropout/nesterov", "exponent/rag/nesterov"),
                    says="expected nested dropout scales worse than RAG",
                ),
                Reported("exponent/rag/nesterov", says="exponent of RAG"),
            ),
        ),
        "paper": Scale(
            Race("gaussian", EVERY_SIZE, RATES, limit=50_000),
            (
                AtMost("epochs/rag/nesterov", 50_000, at="everywhere", says="RAG always arrives"),
                Outweighs(
                    "epochs/nonuniform_l2/nesterov",
                    "epochs/rag/nesterov",
                    3.0,
                    at=50,
                    says="the non-uniform penalty is slower than RAG",
                ),
                Ordered(
                    ("exponent/expected_nested_dropout/nesterov", "exponent/rag/nesterov"),
                    says="expected nested dropout scales worse than RAG",
                ),
                Outweighs(
                    "epochs/nonuniform_l2/adam",
                    "epochs/rag/nesterov",
                    5.0,
                    at=500,
                    says="Adam does not save the non-uniform penalty at 500 latents",
                ),
                Outweighs(
                    "epochs/expected_nested_dropout/adam",
                    "epochs/rag/nesterov",
                    5.0,
                    at=500,
                    says="nor expected nested dropout",
                ),
                Reported("exponent/rag/nesterov", says="exponent of RAG"),
            ),
        ),
    },
    draw=Drawing("training", "scaling"),
)

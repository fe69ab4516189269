"""An objective and a rule that are defined outside of the package, as CONTRIBUTING describes."""

from dataclasses import dataclass

from array_api_compat import array_namespace

from lucidae.linear import (
    Objective,
    Reconstruction,
    Rule,
    TiedWeights,
    UntiedWeights,
    register_method,
    unregister_method,
)

NOISE = 0.2


@dataclass(frozen=True, slots=True)
class Denoising(Objective):
    """E‖x − W₂W₁(x + ε)‖² with noise ε of variance ν: L + ν‖W₂W₁‖². Pretorius et al. 2018.

    The map W₂W₁ minimises a reduced-rank regression on x + ε, whose solution keeps the leading
    principal directions and shrinks each by σ²/(σ² + ν).
    """

    noise: float

    def value(self, weights, covariance):
        """Return L + ν‖W₂W₁‖²."""
        shrunk = ((weights.atoms.mT @ weights.encoder) ** 2).sum((-2, -1))
        return Reconstruction().value(weights, covariance) + self.noise * shrunk

    def gradient(self, weights, covariance):
        """Return ∇L + 2ν W₂ᵀW₂W₁ and (∇L + 2ν W₂W₁W₁ᵀ)ᵀ."""
        free = UntiedWeights(weights.encoder, weights.atoms)
        encoder, atoms = Reconstruction().gradient(free, covariance)
        gram, code = weights.atoms @ weights.atoms.mT, weights.encoder @ weights.encoder.mT
        return weights.gather(
            encoder + 2 * self.noise * gram @ weights.encoder,
            atoms + 2 * self.noise * code @ weights.atoms,
        )

    def minimizer(self, spectrum, k):
        """Return the balanced minimizer W₂ = U(S²/(S² + νI))^½ = W₁ᵀ."""
        values = spectrum.values[:k]
        length = array_namespace(values).sqrt(values / (values + self.noise))
        rows = length[:, None] * spectrum.vectors[:, :k].mT
        return UntiedWeights(rows, rows)

    def minimum(self, spectrum, k):
        """Return tr Σ − Σᵢ σᵢ⁴/(σᵢ² + ν)."""
        values = spectrum.values[:k]
        return spectrum.trace - float(sum(values**2 / (values + self.noise)))


@dataclass(frozen=True, slots=True)
class SubspaceRule(Rule):
    """W ← W + α(WΣ − WΣWᵀW), the symmetric subspace rule. Oja 1989."""

    tying = "required"
    balanced = True

    def direction(self, weights, covariance):
        """Return WΣWᵀW − WΣ."""
        encoded = covariance.apply(weights.encoder)
        return TiedWeights(encoded @ weights.encoder.mT @ weights.encoder - encoded)


@dataclass(frozen=True, slots=True)
class Unsolved(Objective):
    """The reconstruction loss, as if nobody knew its minimum."""

    def value(self, weights, covariance):
        """Return L."""
        return Reconstruction().value(weights, covariance)

    def gradient(self, weights, covariance):
        """Return ∇L."""
        return Reconstruction().gradient(weights, covariance)


NAMES = ("denoising", "subspace", "unsolved")


def register():
    """Register all three."""
    register_method("denoising", objective=lambda _: Denoising(NOISE))
    register_method("subspace", rule=lambda _: SubspaceRule())
    register_method("unsolved", objective=lambda _: Unsolved())


def unregister():
    """Remove all three."""
    for name in NAMES:
        unregister_method(name)

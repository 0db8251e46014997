"""The preconditioner of Adam and its kin, by which squared norms of gradients are weighted for their noise.

Their step with a gradient g is along P g with P_jj = 1 / (sqrt(v_j / (1 - beta2^t)) + eps), where v is the
running mean of squares after t steps. The noise scale of such a step is tr(P Σ P) / |P G|² (Pollux, section
3.1, equation 5): that of plain SGD, with each gradient multiplied by P. So long as one P is used for all
gradients of a step, and does not depend on them, estimates are without bias; it is thus of a v from before
the step. An element whose v is 0 has had no gradient yet, and so has no P either: it counts as 0.

This module knows names and numbers; the arrays belong to those who have them.
"""

PRECONDITIONED = frozenset({"adam", "adamw", "keras_adam", "keras_adamw"})
"""The optimisers, of `idl.optimizers`, that have a preconditioner."""

STEPS = 10
"""Steps that one preconditioner holds for, and steps before the first one.

v changes by at most 1% in 10 steps with beta2 = 0.999. Of fewer gradients it says little: with normally
distributed ones, P² has a mean from 3 on, and a variance from 5 on.
"""

_LEAST_EPS = 1e-30  # so that 0 / 0 does not occur; it is a number in float32


def inverse_root(optimizer: str, beta2: float, eps: float, steps: int) -> tuple[float, float]:
    """Return a and b, with which 1 / P_jj = a sqrt(v_j) + b.

    Args:
        optimizer: The optimiser's name, in `PRECONDITIONED`. Keras's add eps to the uncorrected root, as in
            `ps.keras_optimizers`.
        beta2: Decay of v, at least 0 and less than 1.
        eps: At least 0.
        steps: t, the steps that v is of; at least 1.
    """
    correction = (1 - beta2**steps) ** -0.5
    eps = max(eps, _LEAST_EPS)
    return correction, eps * correction if optimizer.startswith("keras") else eps

"""The leading eigenvectors of a symmetric matrix whose eigenvalues are known.

`numpy.linalg.eigh` gives all of them, at twice the time of the eigenvalues and four times the memory.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["leading_eigenvectors"]

Floats = NDArray[np.float64]

# Steps of Lanczos at most, and how often it is asked whether they are enough: tables need some 30, noise 150.
STEPS = 256
ASKED = 16
# What a vector may lack of being an eigenvector, and a value of being an eigenvalue, in largest eigenvalues.
RESIDUAL = 1e-11
ERROR = 1e-9
# The least eigenvalue whose vector can be told so, in largest ones.
SMALL = 1e-7


def leading_eigenvectors(matrix: Floats, values: Floats, count: int) -> Floats:
    """Return the eigenvectors of the largest eigenvalues.

    Args:
        matrix: Symmetric, not negative, shape (n, n).
        values: Its eigenvalues, from the largest on, shape (n,).
        count: Eigenvectors wanted, k ≤ n; each eigenvalue of them is above 0.

    Returns:
        Shape (n, k), orthogonal and of length 1.
    """
    if not count:
        return np.zeros((len(matrix), 0))
    # What is left of a small one is lost in the rounding of the largest.
    found = _by_lanczos(matrix, values, count) if values[count - 1] > SMALL * values[0] else None
    return _by_inverse_iteration(matrix, values[:count]) if found is None else found


def _start(size: int, number: int) -> Floats:
    """Return a vector that is orthogonal to no eigenvector but by accident."""
    start: Floats = np.cos(number * np.arange(1, size + 1) ** 2.0)
    return start


def _by_lanczos(matrix: Floats, values: Floats, count: int) -> Floats | None:
    """Return them, or None: it sees one vector alone of an eigenvalue that stands twice, or needs more steps.

    Source: Golub & Van Loan 2013, "Matrix Computations", 4th edition, sections 10.1 and 10.3.2, with complete
        reorthogonalization.
    """
    most = min(STEPS, len(matrix))
    basis, inner = np.zeros((len(matrix), most)), np.zeros((most, most))
    vector = _start(len(matrix), 1)
    vector /= np.linalg.norm(vector)
    for step in range(most):
        basis[:, step] = vector
        vector = matrix @ vector
        inner[step, step] = basis[:, step] @ vector
        for _ in range(2):  # once leaves what rounding brought back
            vector -= basis[:, : step + 1] @ (basis[:, : step + 1].T @ vector)
        rest = float(np.linalg.norm(vector))
        is_over = rest <= RESIDUAL * values[0] or step + 1 == most
        if is_over or (step + 1) % ASKED == 0:
            seen, vectors = np.linalg.eigh(inner[: step + 1, : step + 1])
            if _is_enough(seen[::-1], rest * vectors[-1, ::-1], values[:count]):
                leading: Floats = basis[:, : step + 1] @ vectors[:, : -count - 1 : -1]
                return leading
        if is_over:
            return None
        inner[step, step + 1] = inner[step + 1, step] = rest
        vector /= rest
    return None


def _is_enough(seen: Floats, residuals: Floats, wanted: Floats) -> bool:
    """Whether what was seen in so many steps is what is wanted."""
    count = len(wanted)
    if len(seen) < count or np.abs(residuals[:count]).max() > RESIDUAL * wanted[0]:
        return False
    return bool(np.abs(seen[:count] - wanted).max() <= ERROR * wanted[0])


def _by_inverse_iteration(matrix: Floats, values: Floats) -> Floats:
    """Return them, each by a system of equations of its own.

    Source: Golub & Van Loan 2013, section 7.6.1.
    """
    found = np.zeros((len(matrix), 0))
    for number, value in enumerate(values, 1):
        shifted = matrix / values[0]
        # A little beside the eigenvalue: exactly on it there is nothing to solve.
        shifted.flat[:: len(matrix) + 1] -= value / values[0] + 1e-14
        # One step does, from any start that is not orthogonal; each has its own, since eigenvalues may be equal.
        vector = np.linalg.solve(shifted, _start(len(matrix), number))
        vector -= found @ (found.T @ vector)
        found = np.column_stack([found, vector / np.linalg.norm(vector)])
    return found

"""Small data sets in files, for workloads whose own data would take longer to make than to train on."""

import numpy as np


def write_svmlight(path, samples, features=40, seed=0):
    """Write samples with two labels, -1 and 1, that a linear model tells apart; the last feature occurs."""
    random = np.random.default_rng(seed)
    lines = []
    for sample in range(samples):
        columns = np.sort(random.choice(features - 1, 8, replace=False))
        columns[0] = random.integers(4)  # says which label it is
        label = 1 if columns[0] < 2 else -1
        columns = [*np.unique(columns), *[features - 1] * (sample == 0)]
        lines.append(f"{label} {' '.join(f'{column + 1}:1' for column in columns)}\n")
    path.write_text("".join(lines))

"""An ordinary JAX training script, with Flax and optax: handwritten digits, on one machine."""

import flax.linen as nn
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

digits = load_digits()
images, labels = digits.data.astype(np.float32) / 16, digits.target
train, test = (images[:1500], labels[:1500]), (images[1500:], labels[1500:])

model = nn.Sequential([nn.Dense(128), nn.tanh, nn.Dense(10)])
params = model.init(jax.random.key(1), images[:1])


def losses(params, batch):
    """One for each sample."""
    return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, batch[0]), batch[1])


value_and_grad = jax.jit(jax.value_and_grad(lambda params, batch: losses(params, batch).mean()))
optimizer = optax.sgd(0.1, momentum=0.9)
state = optimizer.init(params)
generator = np.random.default_rng(1)

for _ in range(15):
    for indices in np.split(generator.permutation(1500), range(128, 1500, 128)):
        loss, gradient = value_and_grad(params, (train[0][indices], train[1][indices]))
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)

correct = (model.apply(params, test[0]).argmax(1) == test[1]).mean()
print(f"accuracy {correct:.1%}")

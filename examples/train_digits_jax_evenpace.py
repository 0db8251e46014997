"""The script train_digits_jax.py over many uneven workers: the set-up of the training and its loop differ.

Start it with `evenpace worker`, as docs/cluster.md shows, and with `--granularity 8`.
"""

import flax.linen as nn
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import evenpace

digits = load_digits()
images, labels = digits.data.astype(np.float32) / 16, digits.target
train, test = (images[:1500], labels[:1500]), (images[1500:], labels[1500:])

model = nn.Sequential([nn.Dense(128), nn.tanh, nn.Dense(10)])
params = model.init(jax.random.key(1), images[:1])


def losses(params, batch):
    """One for each sample."""
    return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, batch[0]), batch[1])


loader = evenpace.jax.DataLoader(train, batch_size=128, shuffle=True)
value_and_grad = evenpace.jax.value_and_grad(losses, micro_batch_size=8)
optimizer = evenpace.jax.distribute(evenpace.jax.sgd(0.1, momentum=0.9), params, loader, value_and_grad)

for _ in loader.epochs(15):
    for batch in loader:
        loss, gradient = value_and_grad(optimizer.params, batch)
        optimizer.step(gradient)

correct = (model.apply(optimizer.params, test[0]).argmax(1) == test[1]).mean()
print(f"accuracy {correct:.1%}")

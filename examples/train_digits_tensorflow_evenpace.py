"""A custom training loop in TensorFlow, over many uneven workers.

Start it with `evenpace worker`, as docs/cluster.md shows, and with KERAS_BACKEND=tensorflow.
"""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import evenpace

keras.utils.set_random_seed(1)
digits = load_digits()
images, labels = digits.images / 16, digits.target
train, test = (images[:1500], labels[:1500]), (images[1500:], labels[1500:])

layers = [
    keras.Input((8, 8)),
    keras.layers.Flatten(),
    keras.layers.Dense(128, "tanh"),
    keras.layers.Dense(10),
]
model = keras.Sequential(layers)
loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
loader = evenpace.keras.DataLoader(*train, batch_size=128, shuffle=True)
optimizer = evenpace.keras.distribute(optimizer, loader, model.trainable_variables)


@tf.function(input_signature=loader.signature)  # traced once, whatever the batch sizes
def step(batch, targets):
    """Train on one batch."""
    with tf.GradientTape() as tape:
        loss = loss_function(targets, model(batch, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


for _ in loader.epochs(15):
    for batch, targets in loader:
        step(batch, targets)

correct = keras.ops.argmax(model(test[0]), axis=1) == test[1]
print(f"accuracy {keras.ops.mean(correct):.1%}")

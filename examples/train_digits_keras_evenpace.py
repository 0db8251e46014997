"""The script train_digits_keras.py over many uneven workers: three lines differ.

Start it with `evenpace worker`, as docs/cluster.md shows, and with KERAS_BACKEND=tensorflow.
"""

import keras
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
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
loader = evenpace.keras.DataLoader(*train, batch_size=128, shuffle=True)
evenpace.keras.distribute(model, loader)

model.fit(loader, epochs=15, validation_data=test, verbose=2)

print(f"accuracy {model.evaluate(*test, verbose=0)[1]:.1%}")

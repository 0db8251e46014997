"""An ordinary Keras training script: handwritten digits, on one machine."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

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
loader = tf.data.Dataset.from_tensor_slices(train).shuffle(1500).batch(128)

model.fit(loader, epochs=15, validation_data=test, verbose=2)

print(f"accuracy {model.evaluate(*test, verbose=0)[1]:.1%}")

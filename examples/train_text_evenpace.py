"""A small transformer that predicts the next character of sentences, over many uneven workers.

Start it with `evenpace run examples/train_text_evenpace.py --workers 2`. From train_text.py differ the
loader, with the function `characters`, one line after it, and the loop over epochs.

The sentences are those of Python's own help texts, of 20 to 200 characters. A batch is padded to its longest,
and the loss is the mean over the characters that count.
"""

import re
from pydoc_data.topics import topics

import torch
from torch import nn

import evenpace

PAD, LENGTH, WIDTH = 0, 200, 32
torch.manual_seed(1)
text = " ".join(" ".join(topics.values()).split())
sentences = re.findall(r"[A-Z][^.]{18,198}[.]", text)[:1200]
letters = sorted(set("".join(sentences)))
data = [torch.tensor([letters.index(letter) + 1 for letter in sentence]) for sentence in sentences]
train, test = data[:1000], data[1000:]


def collate(samples):
    """Return characters, and the next ones of each, (samples, longest - 1)."""
    padded = nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=PAD)
    return padded[:, :-1], padded[:, 1:]


class Transformer(nn.Module):
    """Two layers of attention to the characters before each one."""

    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(len(letters) + 1, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scores = nn.Linear(WIDTH, len(letters) + 1)

    def forward(self, inputs):
        """Return the scores of what follows each character, (samples, length, letters)."""
        length = inputs.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.letters(inputs) + self.places(torch.arange(length))
        return self.scores(self.layers(hidden, mask=mask, is_causal=True))


def loss_of(model, inputs, targets):
    """Return the mean loss over the characters that are not padding."""
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=PAD)


model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def characters(batch):
    """Return what the loss of a batch is a mean over."""
    return (batch[1] != PAD).sum()


loader = evenpace.torch.DataLoader(
    train,
    batch_size=64,
    shuffle=True,
    collate_fn=collate,
    weight=characters,
    cost=[len(sentence) for sentence in train],
    sort=True,
)
optimizer = evenpace.torch.distribute(optimizer, loader, model)

for _ in loader.epochs(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_of(model, inputs, targets).backward()
        optimizer.step()

with torch.no_grad():
    print(f"loss {loss_of(model, *collate(test)):.2f}")

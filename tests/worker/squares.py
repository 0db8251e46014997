"""A small map-style data set for the PyTorch adapter."""


class Squares:
    """A map-style data set that is no torch class; its items are dictionaries."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"index": index, "square": float(index * index)}

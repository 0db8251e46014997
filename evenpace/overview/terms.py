"""Explanations of the words in tables and charts, for legends and tooltips; each without a full stop."""

from evenpace.overview.stragglers import KINDS

VERDICTS = {
    "chronic": "a straggler: at least 1.25 times as long per sample as the others' median, in nearly every "
    "iteration of late, such as a slower machine",
    "passing": "a straggler for now: slower than it can be itself, as when others use its machine",
    "leader": "the fastest, by at least a tenth: what the others are compared with",
    "even": "none of these: it keeps pace, or there is too little to tell",
}
assert tuple(VERDICTS) == KINDS

PARTS = {
    "computing": "loading samples, forward and backward pass; with all-reduce, transfers are in it, too",
    "communicating": "sending gradients to the parameter server and fetching parameters from it",
    "waiting": "for the slower workers",
}

COLUMNS = {
    "iteration": "what a worker spends an iteration on, on average: computing, communicating and waiting "
    "make up its whole time",
    "time per sample": "least, median and most over the last iterations",
    "of its best": "the worker's speed relative to its own best, which it reaches in one of 20 iterations: "
    "100% is as fast as it can be",
    "of the others": "the worker's speed relative to the median of all workers': 0.5× is half as fast",
    "batch": "samples that the worker takes in an iteration, and what an even split would give it",
    "hidden": "share of the time of its transfers that the worker spends computing meanwhile; its bottleneck "
    "is communication if the transfers of all gradients but the last end after the backward pass",
    "won or given": "time per iteration by which the worker would take longer with an even split (won), or "
    "less (given: it takes samples off the slower ones)",
}

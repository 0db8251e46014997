"""FlexRR's work stealing: every sample exactly once, and slow workers are helped."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.experiments.flexrr import Board, positions


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.data())
def test_every_position_comes_exactly_once(tmp_path_factory, counts, data):
    """No position is lost or done twice, however the workers' steps interleave."""
    board = Board(tmp_path_factory.mktemp("board") / "board", len(counts))
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    running = {rank: positions(board, rank, 0, starts[rank], count) for rank, count in enumerate(counts)}
    seen = []
    while running:
        rank = data.draw(st.sampled_from(sorted(running)))
        for _ in range(data.draw(st.integers(1, 40))):
            position = next(running[rank], None)
            if position is None:
                del running[rank]
                break
            seen.append(position)
    board.close()

    assert sorted(seen) == list(range(sum(counts)))


def test_a_straggler_is_helped(tmp_path):
    """A worker that has stopped after its first samples loses most of the others to a fast one."""
    board = Board(tmp_path / "board", 2)
    slow = positions(board, 1, 0, 100, 100)
    first = [next(slow) for _ in range(5)]
    fast = list(positions(board, 0, 0, 0, 100))

    assert [position for position in fast if position < 100] == list(range(100))
    assert len(fast) > 160
    assert sorted([*first, *fast, *slow]) == list(range(200))

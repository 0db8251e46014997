"""FlexRR's work stealing: every sample exactly once, and slow workers are helped."""

import fcntl
import multiprocessing
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.experiments.flexrr import Board, positions

_CONTEXT = multiprocessing.get_context("fork")


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


def test_who_has_not_begun_is_not_helped(tmp_path):
    """A worker that is still in the iteration before keeps its samples of that."""
    board = Board(tmp_path / "board", 2)
    board.begin(1, iteration=3, start=100, count=50)

    assert list(positions(board, 0, 3, 0, 10)) == list(range(10))
    assert list(board.take(1, 50)) == list(range(100, 150))


def test_a_straggler_is_helped(tmp_path):
    """A worker that has stopped after its first samples loses most of the others to a fast one."""
    board = Board(tmp_path / "board", 2)
    slow = positions(board, 1, 0, 100, 100)
    first = [next(slow) for _ in range(5)]
    fast = list(positions(board, 0, 0, 0, 100))

    assert [position for position in fast if position < 100] == list(range(100))
    assert len(fast) > 160
    assert sorted([*first, *fast, *slow]) == list(range(200))


def test_equal_workers_keep_their_own(tmp_path):
    """Nobody takes anything from a worker that keeps up."""
    board = Board(tmp_path / "board", 2)
    pair = [positions(board, 0, 0, 0, 100), positions(board, 1, 0, 100, 100)]
    taken = [[next(worker) for worker in pair] for _ in range(100)]

    assert [row[0] for row in taken] == list(range(100))
    assert [row[1] for row in taken] == list(range(100, 200))


def test_a_slice_is_not_taken_from_while_it_is_written(tmp_path, wait_until):
    """A worker that is held up half-way through its entry on the board is waited for, not misread."""
    path, (half_way, go_on) = tmp_path / "board", (_CONTEXT.Event(), _CONTEXT.Event())
    writer = _CONTEXT.Process(target=_write_slowly, args=(path, half_way, go_on))
    writer.start()
    assert half_way.wait(240)
    with ThreadPoolExecutor(1) as thread:
        stolen = thread.submit(Board(path, 2).steal, victim=1, iteration=1, progress=1.0)
        wait_until(lambda: stolen.done() or _waits_for_a_lock(), "the thief at the writer's lock")
        go_on.set()

    assert stolen.result() == range(198, 200)
    writer.join(240)


def _write_slowly(path, half_way, go_on):
    """Enter the positions from 100 to 200 as the second worker's; wait after the iteration's number."""
    entry = struct.pack("<qqqq", 1, 100, 200, 100)
    with path.open("w+b", buffering=0) as file:
        file.truncate(2 * len(entry))
        file.seek(len(entry))
        fcntl.lockf(file, fcntl.LOCK_EX, len(entry), len(entry))
        file.write(entry[:8])
        half_way.set()
        go_on.wait(240)
        file.write(entry[8:])


def _waits_for_a_lock():
    """Return whether this process waits for a lock on any file."""
    waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return any(str(os.getpid()) in words for words in waiting)


def test_processes_share_a_board(tmp_path):
    """Real processes that run into each other over many iterations process each position once in each."""
    results, counts, iterations = _CONTEXT.Queue(), [400, 100, 250], 20
    together = _CONTEXT.Barrier(len(counts))
    workers = [
        _CONTEXT.Process(target=_work, args=(tmp_path / "board", rank, counts, iterations, together, results))
        for rank in range(len(counts))
    ]
    for worker in workers:
        worker.start()
    taken = [results.get(timeout=240) for _ in workers]
    for worker in workers:
        worker.join(240)
    assert [len(parts) for parts in taken] == [iterations] * len(counts)
    for parts in zip(*taken, strict=True):
        assert sorted(position for part in parts for position in part) == list(range(sum(counts)))


def _work(path, rank, counts, iterations, together, results):
    board = Board(path, len(counts))
    taken = []
    try:
        for iteration in range(iterations):
            together.wait(240)
            taken.append(list(positions(board, rank, iteration, sum(counts[:rank]), counts[rank])))
    except BaseException:
        together.abort()
        raise
    finally:
        results.put(taken)

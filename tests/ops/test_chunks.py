"""Chunk arithmetic against brute force, for rows that stand at different positions."""

import itertools

import pytest
import torch

from anchorlm.ops.chunks import Chunks
from anchorlm.ops.rows import Span

CASES = list(
    itertools.product([1, 3, 4], [0, 1, 2], [((0,), (7,)), ((5,), (8,)), ((0, 5, 11), (9, 4, 0)), ((4, 8), (4, 4))])
)


def chunks(chunk, lag, starts, lengths):
    return Chunks(chunk, lag, Span(starts, lengths, max(lengths)))


def streams(c):
    """Each row's buffer and new tokens, named by position, and the two tensors as the writer would hold them."""
    held = max(c.filled)
    buffer = torch.full((len(c.filled), held), -1)
    new = torch.full((len(c.filled), c.span.width), -2)
    for row, (start, filled, length) in enumerate(zip(c.span.start, c.filled, c.span.length)):
        buffer[row, :filled] = torch.arange(start - filled, start)
        new[row, :length] = torch.arange(start, start + length)
    return buffer, new


@pytest.mark.parametrize("chunk,lag,rows", CASES)
def test_counters_equal_a_token_loop(chunk, lag, rows):
    c = chunks(chunk, lag, *rows)
    for row, (start, length) in enumerate(zip(*rows)):
        complete = [n for n in range(1000) if (n + 1 + lag) * chunk <= start]
        after = [n for n in range(1000) if (n + 1 + lag) * chunk <= start + length]
        assert c.written[row] == len(complete)
        assert c.filled[row] == start - len(complete) * chunk
        assert c.commits[row] == len(after) - len(complete)
        assert int(c.first_positions("cpu")[row]) == len(complete) * chunk


@pytest.mark.parametrize("chunk,lag,rows", CASES)
def test_stream_and_rest_hold_the_right_tokens(chunk, lag, rows):
    c = chunks(chunk, lag, *rows)
    buffer, new = streams(c)
    stream = c.join(buffer[:, :, None] if buffer.shape[1] else None, new[:, :, None])[..., 0]
    rest = c.rest(stream[..., None])[..., 0]
    for row, (start, length) in enumerate(zip(*rows)):
        first, last = start - c.filled[row], start + length
        assert stream[row, : last - first].tolist() == list(range(first, last))
        left = max(0, last // chunk - lag) * chunk
        assert rest[row, : last - left].tolist() == list(range(left, last))


@pytest.mark.parametrize("chunk,lag,rows", CASES)
def test_every_token_reads_the_state_of_its_block(chunk, lag, rows):
    """Lag m: token t reads the state after chunks 0 .. t // C - m - 1, whoever asks and wherever the call began."""
    c = chunks(chunk, lag, *rows)
    covered = []
    for first, last, seen in c.reads():
        covered += range(first, last)
        for row, (start, length) in enumerate(zip(*rows)):
            for offset in range(first, min(last, length)):
                assert c.written[row] + seen[row] == max(0, (start + offset) // chunk - lag)
    assert covered == list(range(c.span.width))


@pytest.mark.parametrize("chunk,lag,window", itertools.product([1, 3, 4, 8], [0, 1, 2], [1, 3, 4, 8, 11]))
def test_gap_and_overlap_formulas(chunk, lag, window):
    """What neither branch sees, and what both see, by counting keys."""
    gaps, overlaps = [], []
    for t in range(8 * max(chunk, window) * (lag + 1)):
        memory = set(range(max(0, t // chunk - lag) * chunk))
        near = set(range(max(0, t - window + 1), t + 1))
        gaps.append(len(set(range(t + 1)) - memory - near))
        overlaps.append(len(memory & near))
    assert max(gaps) == max(0, (lag + 1) * chunk - window)
    assert max(overlaps) == max(0, window - 1 - lag * chunk)

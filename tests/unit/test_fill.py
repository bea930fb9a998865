"""Prompts cut and packed into fills, and what the device is told of them."""

import pytest
import torch
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.decode.fill import Fill, Piece, pack
from higgs_tts.engine.decode.kernels import prompt
from higgs_tts.engine.decode.kernels.prompt import MAX_ENDS, MAX_POSITIONS, QUERIES, SIZES, Sharing, Size


def sequence_of(config, text, codes=0, tail=0):
    columns = torch.arange(codes * config.codebooks).view(codes, config.codebooks) % 1024
    return Sequence(list(range(text + codes + tail)), ((text, columns),) if codes else ())


def whole(sequence, row=0):
    return Piece(sequence, row, 0, len(sequence))


def packed(config, *sequences, sharing=Sharing.EQUAL_SIZES):
    """(size, [(row, start, stop), ...]) of each fill."""
    pieces = [whole(sequence, row) for row, sequence in enumerate(sequences)]
    return [(size, [(one.row, one.start, one.stop) for one in held]) for size, held in pack(config, pieces, sharing)]


@pytest.fixture
def v3(small):
    return small.config("v3")


@pytest.fixture
def v2(small):
    return small.config("v2")


@pytest.mark.parametrize("length", [1, 128, 129, 340, 511, 512])
def test_a_prompt_gets_the_smallest_size_that_holds_it(v3, length):
    size = next(size for size in SIZES if size >= length)
    assert packed(v3, sequence_of(v3, length)) == [(Size(size, 0), [(0, 0, length)])]


def test_text_and_codes_have_separate_sizes_if_their_weights_differ(v2):
    assert packed(v2, sequence_of(v2, 20, 250, 70)) == [(Size(128, 256), [(0, 0, 340)])]
    assert packed(v2, sequence_of(v2, 0, 129)) == [(Size(0, 256), [(0, 0, 129)])]


def test_prompts_of_one_size_share_a_fill_while_they_fit(v3):
    short = [sequence_of(v3, length) for length in (50, 60, 18, 1)]
    assert packed(v3, *short) == [
        (Size(128, 0), [(0, 0, 50), (1, 0, 60), (2, 0, 18)]),
        (Size(128, 0), [(3, 0, 1)]),
    ]
    assert [held for _, held in packed(v3, *short, sharing=Sharing.NONE)] == [
        [(row, 0, len(one))] for row, one in enumerate(short)
    ]


def test_prompts_of_any_size_share_the_largest_fill(v3, v2):
    mixed = [sequence_of(v3, length) for length in (91, 200, 130, 90, 2, 700)]
    assert packed(v3, *mixed, sharing=Sharing.ANY_SIZES) == [
        (Size(512, 0), [(0, 0, 91), (1, 0, 200), (2, 0, 130), (3, 0, 90)]),
        (Size(128, 0), [(4, 0, 2)]),
        (Size(512, 0), [(5, 0, 512)]),
        (Size(256, 0), [(5, 512, 700)]),
    ]
    mixed = [sequence_of(v2, *counts) for counts in ((20, 0), (30, 250), (100, 90), (3, 200))]
    assert packed(v2, *mixed, sharing=Sharing.ANY_SIZES) == [
        (Size(256, 384), [(0, 0, 20), (1, 0, 280), (2, 0, 190)]),
        (Size(128, 256), [(3, 0, 203)]),
    ]


@pytest.mark.parametrize("sharing", [Sharing.EQUAL_SIZES, Sharing.ANY_SIZES])
def test_ends_of_a_fill_stay_within_its_room(v3, sharing):
    fills = packed(v3, *(sequence_of(v3, 2) for _ in range(MAX_ENDS + 3)), sharing=sharing)
    assert [len(held) for _, held in fills] == [MAX_ENDS, 3]


def test_a_long_prompt_is_cut_and_its_pieces_come_in_order(v3):
    long, short = sequence_of(v3, 2 * MAX_POSITIONS + 100), sequence_of(v3, 20)
    assert packed(v3, short, long) == [
        (Size(128, 0), [(0, 0, 20)]),
        (Size(512, 0), [(1, 0, 512)]),
        (Size(512, 0), [(1, 512, 1024)]),
        (Size(128, 0), [(1, 1024, 1124)]),
    ]


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_cuts_and_equal_sizes_do_not_depend_on_other_prompts(small, family):
    config = small.config(family)
    prompts = [
        sequence_of(config, text, codes, tail)
        for text, codes, tail in ((5, 0, 0), (200, 300, 90), (60, 130, 60), (0, 40, 700), (1, 1, 1), (90, 129, 40))
    ]
    alone = {row: [(size, held[0][1:]) for size, held in packed(config, one)] for row, one in enumerate(prompts)}
    found = {row: [] for row in alone}
    for size, held in packed(config, *prompts):
        for row, *span in held:
            found[row].append((size, tuple(span)))
    assert found == alone
    sizes = {size for spans in alone.values() for size, _ in spans}
    assert sizes <= set(prompt.sizes_of(config)) and len(sizes) > 2


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_every_size_that_pieces_need_is_captured(small, family):
    config = small.config(family)
    needed = {
        Size(*map(prompt.size_for, piece.counts(config)))
        for codes in range(0, MAX_POSITIONS + 1, 8)
        for text in range(not codes, MAX_POSITIONS - codes + 1, 7)
        for piece in [whole(sequence_of(config, text, codes))]
    }
    assert needed <= set(prompt.sizes_of(config)) and len(needed) >= len(prompt.sizes_of(config)) - 2


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_fill_lists_every_position_once_and_the_ends(small, family):
    config = small.config(family)
    layout, dual = prompt.layout(config), family == "v2"
    one, two = sequence_of(config, 30, 40, 12), sequence_of(config, 3, 0, 0)
    pieces = [Piece(one, 4, 20, len(one)), whole(two, 1)]
    fill = Fill(config, layout, Size(128, 128) if dual else Size(128, 0), pieces)
    words = fill.words[12:].split(
        [layout.places] * 2 + [layout.groups] * 2 + [MAX_ENDS] * 2 + [layout.places * layout.books]
    )
    row, position, first, count, end, end_row, codes = words
    first_code, groups, ends = fill.words[9:12].tolist()
    held = {(int(row[at]), int(position[at])): at for at in range(layout.places) if row[at] >= 0}
    assert set(held) == {(4, at) for at in range(20, 82)} | {(1, at) for at in range(3)}
    assert first_code == (128 if dual else 25) and fill.ids == [*range(20, 30), *range(70, 82), *range(3)]
    for at in range(30, 70):
        place = held[4, at] - first_code
        expected = one.audio[0][1][at - 30] + torch.arange(layout.books) * config.code_vocab
        assert codes.view(layout.places, layout.books)[place].tolist() == expected.tolist()
    assert ends == 2 and end_row[:2].tolist() == [4, 1] and end[:2].tolist() == [held[4, 81], held[1, 2]]
    grouped = [at for i in range(groups) for at in range(int(first[i]), int(first[i] + count[i]))]
    assert sorted(grouped) == sorted(held.values()) and int(count[:groups].max()) <= QUERIES
    for i in range(groups):
        assert len(set(row[first[i] : first[i] + count[i]].tolist())) == 1

"""Casting: voices that are connected, declared in the text, or files of a speaker's name."""

import pytest
from higgs_tts.engine import Cast

CONNECTED = {"1": "first", "2": "second", "amber": "first"}  # the first is Amber's
FILES = ("Bob", "Carol")


def find(name):
    return f"{name}'s file" if name in FILES else None


def declared(name):
    assert name in FILES, name
    return f"{name}'s file"


def cast(names, connected=CONNECTED, head=()):
    """Return the names to read a text with, and who gets what if all of them speak."""
    made = Cast(names, connected, dict(head), find)
    return made.known, made.assign(names, find, declared)


@pytest.mark.parametrize("names", [[], ["Dan"], ["Dan", "Eve"], ["Dan", "Eve", "Fay"]])
def test_speakers_without_a_voice_of_their_own_get_the_connected_ones_in_turn(names):
    assert cast(names) == ([], dict(zip(names, ("first", "second"), strict=False)))


def test_as_many_connected_voices_as_names_are_meant_even_if_a_file_has_one_of_the_names():
    assert cast(["Bob", "Dan"]) == ([], {"Bob": "first", "Dan": "second"})
    known, voices = cast(["Bob", "Dan", "Eve"])
    assert known == [*CONNECTED, "Bob"] and voices == {"Bob": "Bob's file"}


def test_numbers_and_the_connected_voices_names_are_known_in_any_case():
    known, voices = cast(["AMBER", "Speaker 2", "Dan"])
    assert known == [*CONNECTED, "AMBER", "Speaker 2"] and voices == {"AMBER": "first", "Speaker 2": "second"}


def test_a_voice_declared_in_the_text_is_connected_or_a_file():
    known, voices = cast(["Dan", "Eve", "Bob"], head={"Dan": "2", "eve": "Carol"})
    assert known == [*CONNECTED, "Bob"]
    assert voices == {"Dan": "second", "Eve": "Carol's file", "Bob": "Bob's file"}


def test_text_before_the_first_name_gets_the_first_connected_voice():
    assert cast([""]) == ([], {"": "first"}) and cast(["", "Dan"]) == ([], {"": "first", "Dan": "first"})
    assert cast([""], {}) == ([], {}) and cast(["Bob", ""], {}) == (["Bob"], {"Bob": "Bob's file"})


def test_a_declared_voice_that_is_nowhere_is_an_error():
    with pytest.raises(AssertionError, match="Nobody"):
        cast(["Dan"], head={"Dan": "Nobody"})

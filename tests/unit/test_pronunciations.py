"""Pronunciations: words spoken differently from their spelling."""

import pytest
from higgs_tts.engine import HiggsError, read_pronunciations
from higgs_tts.engine.__main__ import main

LIST = """
# names
Nguyen = Win
nginx = engine x
SQL = sequel
New York City = the big apple
York = Yorrk
C++ = C plus plus
C# = C sharp  # not the note
sun = moon
北京 = 背景

[Anna]
Nguyen = Nwin
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Mr Nguyen, Nguyen's and NGUYEN.", "Mr Win, Win's and NGUYEN."),
        ("Nginx, NGINX and nginx-proxy; nginxes", "engine x, engine x and engine x-proxy; nginxes"),
        ("SQL, sql, MySQL", "sequel, sql, MySQL"),
        ("New York City is not York.", "the big apple is not Yorrk."),
        ("C# it is", "C sharp it is"),
        ("Sun and \u017fun", "moon and moon"),  # the long s is an s in another case
        ("C++ and C+++", "C plus plus and C plus plus+"),
        ("我在北京。", "我在背景。"),
        ("<|emotion:York|>York [York] [pause 1]", "<|emotion:York|>Yorrk [York] [pause 1]"),
        ("", ""),
    ],
)
def test_whole_words_are_spelled_as_listed(text, said):
    assert read_pronunciations(LIST).apply(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\u0930\u093e\u092e, \u0930\u093e\u092e\u093e, \u0915\u0940", "Ram, \u0930\u093e\u092e\u093e, \u0915\u0940"),
        ("\u0e41\u0e21 \u0e41\u0e21\u0e48", "Mae \u0e41\u0e21\u0e48"),
        ("a cafe, a caf\u00e9 and a cafe\u0301", "a cafe, a kaffay and a kaffay"),
        ("the val\u00adley, val\u200bley", "the walley, walley"),
    ],
)
def test_marks_belong_to_words_and_invisible_characters_do_not(text, said):
    words = "\ufeff\u0930\u093e\u092e = Ram\n\u0915 = Ka\n\u0e41\u0e21 = Mae\ncafe\u0301 = kaffay\nvalley = walley"
    assert read_pronunciations(words).apply(text) == said


@pytest.mark.parametrize(("speaker", "said"), [("Anna", "Nwin"), ("anna", "Nwin"), ("Tom", "Win"), ("", "Win")])
def test_a_speaker_s_own_entries_come_first(speaker, said):
    assert read_pronunciations(LIST).apply("Nguyen", speaker) == said


def test_replaced_words_are_not_replaced_again():
    assert read_pronunciations("a = b\nb = c").apply("a b") == "b c"


def test_an_empty_list_changes_nothing():
    assert read_pronunciations("# nothing\n\n").entries == () and read_pronunciations("").apply("a = b") == "a = b"


@pytest.mark.parametrize("line", ["Nguyen", "Nguyen =", "= Win", "Nguyen: Win"])
def test_a_line_that_is_no_entry_is_refused_by_number(line):
    with pytest.raises(HiggsError, match=r"my\.txt, line 2: .*Nguyen = Win"):
        read_pronunciations(f"# one\n{line}", "my.txt")


def test_the_terminal_reads_a_list(tmp_path, capsys):
    words, out = tmp_path / "words.txt", tmp_path / "a.wav"
    words.write_text("[broken", encoding="utf-8")
    assert main(["say", "Hi.", "--out", str(out), "--pronunciations", str(words)]) == 2
    assert "words.txt, line 1" in capsys.readouterr().err and not out.exists()
    codes = []
    words.write_text("apple = pear", encoding="utf-8")
    for number, (text, given) in enumerate((("One apple.", ["--pronunciations", str(words)]), ("One pear.", []))):
        saved = tmp_path / f"{number}.npy"
        command = ["say", text, "--out", str(out), "--codes", str(saved), "--device", "cpu", "--max-frames", "30"]
        assert main([*command, *given]) == 0
        codes.append(saved.read_bytes())
    assert codes[0] == codes[1]

"""Subtitles and lists of pronunciations from files: errors name what is not a file, or too large."""

import pytest
from higgs_tts.engine import HiggsError, Pronunciations, read_book, read_plain_text
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.files.plain_text import tell
from higgs_tts.engine.tools.text_files import dialogue_in, pronunciations_in


@pytest.mark.parametrize("option", [["--srt-in"], ["Hello.", "--pronunciations"]])
def test_files_that_are_no_text_are_refused(tmp_path, option, capsys, make_pipe):
    make_pipe(tmp_path / "pipe.txt")  # reading it would never end
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate((8 << 20) + 1)
    for name, told in (
        ("pipe.txt", "it is not a file"),
        ("zero\0byte.txt", "No such file"),
        ("large.txt", "at most 8 MB can be read"),
        ("", "it is not a file"),
    ):
        assert main(["say", "--out", str(tmp_path / "a.wav"), *option, str(tmp_path / name)]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"error: {tmp_path / name} cannot be read") and told in error


def test_windows_line_ends_are_read(tmp_path):
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfNguyen = Win\r\nLeicester = Lester\r\n")
    assert pronunciations_in(tmp_path / "list.txt").apply("Nguyen in Leicester") == "Win in Lester"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_a_script_may_have_any_encoding(tmp_path, encoding, caplog):
    tell.cache_clear()
    (tmp_path / "script.txt").write_bytes("Anna: Grüße!\r\nTom: Hallo.\r\n".encode(encoding))
    dialogue = dialogue_in(tmp_path / "script.txt", Pronunciations(), knows_tag=lambda tag: True)
    assert [(turn.speaker, turn.text) for turn in dialogue.turns] == [("Anna", "Grüße!"), ("Tom", "Hallo.")]
    told = [
        "script.txt is not UTF-8 and was read as Windows-1252: 'Anna: Grüße!'. If letters are wrong, save it as UTF-8."
    ]
    assert [record.message for record in caplog.records] == told * (encoding == "cp1252")


TEXTS = {
    "german": "Die Brücke über den Fluß war gesperrt, und „Jörg“ fuhr – wie jeden Tag – außen herum.",
    "french": "L’été dernier, Élodie a vu la mer à l’aube : « C’était déjà très beau », dit-elle.",
    "spanish": "¿Qué pasó el año pasado? La niña comió piña y después se durmió en el sofá.",
    "portuguese": "A irmã não está em casa; o pão e o café estão na mesa, e você já pode começar.",
    "english": "“It’s late,” she said — “and I don’t know why.” He didn’t answer…",
    "polish": "Mój brat mieszka w małej wsi pod Łodzią, gdzie każdy zna każdego i pije się gorącą herbatę.",
    "russian": "Старый мост через реку закрыли весной, и теперь все ездят по другой дороге.",
    "greek": "Η παλιά γέφυρα έκλεισε την άνοιξη και τώρα όλοι πηγαίνουν από άλλο δρόμο.",
    "japanese": "古い橋は春に閉鎖されて、今はみんな別の道を通っています。コーヒーを飲みますか。",
    "simplified": "那座老桥春天就关了，现在大家都走另一条路。他说他不知道为什么。",
    "traditional": "那座老橋春天就關了，現在大家都走另一條路。他說他不知道為什麼。",
    "korean": "오래된 다리는 봄에 닫혔고 지금은 모두 다른 길로 다닙니다. 왜 그런지 모릅니다.",
}
SAVED = [
    ("german", "cp1252", "Windows-1252"),
    ("french", "cp1252", "Windows-1252"),
    ("spanish", "cp1252", "Windows-1252"),
    ("portuguese", "cp1252", "Windows-1252"),
    ("english", "cp1252", "Windows-1252"),
    ("german", "mac_roman", "Mac Roman"),
    ("french", "mac_roman", "Mac Roman"),
    ("spanish", "mac_roman", "Mac Roman"),
    ("english", "mac_roman", "Mac Roman"),
    ("polish", "cp1250", "Windows-1250 (Central European)"),
    ("russian", "cp1251", "Windows-1251 (Cyrillic)"),
    ("russian", "koi8_r", "KOI8-R (Cyrillic)"),
    ("greek", "cp1253", "Windows-1253 (Greek)"),
    ("japanese", "cp932", "Shift-JIS (Japanese)"),
    ("japanese", "euc_jp", "EUC-JP (Japanese)"),
    ("simplified", "gb18030", "GB18030 (Chinese)"),
    ("traditional", "gb18030", "GB18030 (Chinese)"),
    ("traditional", "cp950", "Big5 (Chinese)"),
    ("korean", "cp949", "EUC-KR (Korean)"),
]


@pytest.mark.parametrize(("text", "encoding", "name"), SAVED, ids=lambda value: value)
def test_the_encoding_is_found_and_told(tmp_path, text, encoding, name):
    path, text = tmp_path / "a.txt", TEXTS[text]
    path.write_bytes(f"# 1\r\n{text}\r\nOK.\r\n".encode(encoding))
    read, told = read_plain_text(path)
    assert read == f"# 1\n{text}\nOK.\n"
    (told,) = told
    assert told.startswith(f"a.txt is not UTF-8 and was read as {name}: '") and text[5:25].split("'")[0] in told


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le"])
def test_unicode_is_read_without_a_doubt(tmp_path, text, encoding):
    path, text = tmp_path / "a.txt", f"{TEXTS[text]}\nIt was late, and nobody came. The end of the story is here.\n"
    path.write_bytes(text.encode(encoding))
    assert read_plain_text(path) == (text, ())


@pytest.mark.parametrize("text", ["russian", "japanese", "simplified", "korean"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_and_without_latin_letters_is_told(tmp_path, text, encoding):
    (tmp_path / "a.txt").write_bytes(TEXTS[text].encode(encoding))
    read, told = read_plain_text(tmp_path / "a.txt")
    assert read == TEXTS[text] and all("was read as UTF-16: '" in one for one in told)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            "Grüße für Köln, schöne.".encode() + b"\xfc",
            "has 1 letter that cannot be read: 'Grüße für Köln, schöne.\ufffd'",
        ),
        (
            "古い橋は春に閉鎖されて、今は".encode()[:-1],
            "has 1 letter that cannot be read: '古い橋は春に閉鎖されて、今\ufffd'",
        ),
        ("古い橋は春に閉鎖されて、今は".encode("cp932")[:-1], "has 1 letter that cannot be read"),
        ("Gr\ufffd\ufffde aus Bonn".encode(), "has 2 letters that cannot be read: 'Gr\ufffd\ufffde aus Bonn'"),
        ("Grüße".encode("utf-16")[:-1], "has 1 letter that cannot be read: 'Grüß\ufffd'"),
        ("Grüße, it’s late".encode().decode("cp1252").encode(), "was saved as UTF-8 twice: 'GrÃ¼ÃŸe, itâ€™s late'"),
    ],
)
def test_letters_that_are_lost_are_told(tmp_path, data, told):
    (tmp_path / "a.txt").write_bytes(data)
    assert any(told in one for one in read_plain_text(tmp_path / "a.txt")[1])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK\x03\x04" + bytes(range(256)), "it is a document or a ZIP archive, not plain text"),
        (b"{\\rtf1\\ansi Hello}", "it is RTF, not plain text"),
        (b"%PDF-1.7 ...", "it is a PDF, not plain text"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "it is a Word document, not plain text"),
        (b"\xff\xfb\x90\x00" + bytes(range(256)) * 4, "it is not text"),
        (bytes(2000), "it is not text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4, "it is not text"),
        (b"\x7fELF" + b"\1\2\3\0" * 200, "it is not text"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, data, why):
    (tmp_path / "book.txt").write_bytes(data)
    with pytest.raises(HiggsError, match=rf"book\.txt cannot be read \({why}\)"):
        read_book(tmp_path / "book.txt")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scene.txt", ["--script", "{}"]),
        ("film.srt", ["--srt-in", "{}"]),
        ("list.txt", ["Hello.", "--pronunciations", "{}"]),
    ],
)
def test_the_encoding_is_told_before_anything_is_spoken(tmp_path, name, options, caplog, monkeypatch):
    tell.cache_clear()
    text = (
        "Anna = gone.wav\n\n1\n00:00:01,000 --> 00:00:02,000\nAnna: Grüße!\n" if name != "list.txt" else "Köln = Kuln"
    )
    (tmp_path / name).write_bytes(text.encode("cp1252"))

    def speak(*what, **options):
        assert f"{name} is not UTF-8" in caplog.text
        raise HiggsError("stopped")

    monkeypatch.setattr("higgs_tts.engine.terminal.with_bar", speak)
    monkeypatch.setattr("higgs_tts.engine.terminal._voice", lambda *what: None)
    told = [part.format(tmp_path / name) for part in options]
    assert main(["say", "--out", str(tmp_path / "a.wav"), "--device", "cpu", *told]) == 2
    assert f"{name} is not UTF-8" in caplog.text

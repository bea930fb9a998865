"""Language detection by letters and common words. English with loan words gets no warning."""

import pathlib

import pytest
from higgs_tts.engine.prompt.language import foreign, name_of

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "training" / "text" / "examples.txt"
TOLD = {
    "Chinese": ["你好，世界。", "Please say 你好 to her."],
    "Japanese": ["こんにちは、世界。", "東京へ行きます"],
    "Korean": ["안녕하세요"],
    "Cyrillic": ["Да.", "Привет, как дела?"],
    "Arabic": ["مرحبا كيف حالك"],
    "Devanagari": ["नमस्ते दुनिया"],
    "Thai": ["สวัสดีครับ"],
    "Greek": ["Καλημέρα κόσμε"],
    "Hebrew": ["שלום עולם"],
    "German": ["Das Wetter ist heute sehr schön, und wir gehen in den Park.", "Wo ist der Bahnhof?", "Guten Morgen!"],
    "French": ["Le chat est sur la table.", "Bonjour, je m\u2019appelle Marie et j\u2019habite à Paris."],
    "Spanish": ["Hola, ¿cómo estás? Hoy hace muy buen tiempo.", "No sé qué decir, pero lo intentaré."],
    "Italian": ["Ciao, mi chiamo Marco e vivo a Roma.", "Oggi il tempo è molto bello."],
    "Portuguese": ["Olá, meu nome é João e eu moro em Lisboa.", "Hoje não vou trabalhar."],
    "Dutch": ["Het weer is vandaag erg mooi en wij gaan naar het park.", "Waar is het station?"],
    "Swedish": ["Vädret är mycket fint i dag och vi går till parken."],
    "Danish or Norwegian": ["Jeg har ikke tid til at komme."],
    "Polish": ["Dzień dobry, jak się masz?", "Nie mam czasu, ponieważ muszę pracować."],
    "Czech": ["Příliš žluťoučký kůň úpěl ďábelské ódy."],
    "Turkish": ["Merhaba, bugün hava çok güzel."],
    "Hungarian": ["Az idő ma nagyon szép."],
    "Finnish": ["Minä olen väsynyt, mutta hän ei ole."],
    "Romanian": ["Nu am timp pentru că trebuie să lucrez."],
    "Vietnamese": ["Xin chào, tôi tên là Lan và tôi sống ở Hà Nội."],
    "Indonesian or Malay": ["Selamat pagi, nama saya Budi dan saya tinggal di Jakarta."],
}
ENGLISH = [
    "Your computer can speak now, and this is how it sounds.",
    "The café is nice.",
    "Two naïve cafés served crème brûlée.",
    "Zoë met Chloé and Beyoncé at the façade.",
    "The angle α is 30°, and β is 60°.",
    "Hello! 😀😀",
    "Mr. Müller went to Köln.",
    "Los Angeles is in California.",
    "El Niño",
    "He said: la la la.",
    "Die, die, die!",
    "A man was in an old hat.",
    "",
    "12:30 ... !!!",
    "😀",
]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in TOLD.items() for text in texts])
def test_other_languages_are_detected(name, text):
    assert foreign(text, ["en"]) == [name]


@pytest.mark.parametrize("text", ENGLISH)
def test_english_is_not_taken_for_another_language(text):
    assert foreign(text, ["en"]) == foreign(text, ["en-GB"]) == []


def test_none_of_many_english_sentences_is_taken_for_another_language():
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines()[::25]
    assert len(lines) > 500
    assert [line for line in lines if foreign(line, ["en"])] == []


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        (["de"], TOLD["German"][0]),
        (["nb"], TOLD["Danish or Norwegian"][0]),
        (["zh-Hant"], TOLD["Chinese"][0]),
        (["ja"], "世界"),  # Chinese characters alone may be Japanese
        (["uk"], TOLD["Cyrillic"][1]),
    ],
)
def test_supported_languages_are_not_reported(codes, text):
    assert foreign(text, codes) == []


def test_several_languages_of_a_long_text_are_reported_once_each():
    english, german = (
        "The weather is fine, and we go out. " * 40,
        "Und nun ist es Zeit, dass wir nach Hause gehen. " * 8,
    )
    assert foreign(english + german + english + "世界世界" + german, ["en"]) == ["Chinese", "German"]
    assert foreign(english, ["de"]) == ["English"] and foreign(english, ["zh"]) == ["English"]


def test_language_codes_have_names():
    codes = ("en", "en-US", "de", "zh", "yue", "ja", "ru", "nb", "tlh")
    names = ["English", "English", "German", "Chinese", "Cantonese", "Japanese", "Russian", "Norwegian", "tlh"]
    assert [name_of(code) for code in codes] == names

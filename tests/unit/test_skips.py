import pytest
from higgs_tts.tests.skips import unexpected


@pytest.mark.parametrize(
    ("reason", "is_expected"),
    [
        ("Skipped: no CUDA GPU here", True),
        ("ray is not installed", True),
        ("Skipped: aiohttp is not installed", False),
        ("Skipped: could not import 'av': No module named 'av'", False),
    ],
)
def test_only_listed_skips_are_expected(tmp_path, reason, is_expected):
    list_ = tmp_path / "skips.txt"
    list_.write_text("# machines\nno CUDA GPU\n\nray is not\n", encoding="utf-8")
    assert unexpected([reason, reason], list_) == ([] if is_expected else [reason])

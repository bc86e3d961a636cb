from __future__ import annotations

import pytest

from service.printing.fonts import drawable


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("Größe, coûteux, “x” – 5 ≤ 6", "Größe, coûteux, “x” – 5 ≤ 6"),
        ("客户 x", "[U+5BA2 U+6237] x"),
        ("😀", "[U+1F600]"),
        ("KL(p ‖ q) → ε", "KL(p || q) -> epsilon"),
    ],
)
def test_what_the_fonts_lack_is_printed_as_numbers(text: str, drawn: str) -> None:
    assert drawable(text) == drawn

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from service.printing import CONTENT_SECURITY_POLICY, render_html
from tests.service.printing.statements import absence, certificate, earlier_content, receipt

VOID = {"meta", "col", "rect", "path", "line", "circle", "polyline", "polygon"}


class Page(HTMLParser):
    """Every element with its attributes, and whether all that was opened is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def named(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


PRINTED = {
    "certificate": certificate(),
    "earlier": certificate(content=earlier_content(), logged=False),
    "receipt": receipt(),
    "absence": absence(),
}


@pytest.mark.parametrize("kind", PRINTED)
def test_a_page_needs_nothing_else_and_runs_nothing(kind: str) -> None:
    text = render_html(PRINTED[kind])
    page = Page(text)
    assert page.open == []
    assert not page.named("script", "link", "img", "iframe", "object", "image", "use", "a", "base", "form")
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or name in ("src", "href", "xlink:href", "id") for name in attributes)
    assert "url(" not in text
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_a_page_is_made_to_be_read_aloud() -> None:
    page = Page(render_html(certificate()))
    assert page.named("html") == [{"lang": "en"}]
    assert len(page.named("h1")) == 1
    assert all(attributes.get("scope") in ("row", "col") for attributes in page.named("th"))
    drawings = page.named("svg")
    assert len(drawings) == 5
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in drawings)


def test_a_page_guards_itself_when_it_is_opened_as_a_file() -> None:
    policies = [
        attributes["content"] for attributes in Page(render_html(receipt())).named("meta") if "http-equiv" in attributes
    ]
    assert policies == [CONTENT_SECURITY_POLICY]


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", '"><svg onload=alert(1)>', "</style><b>", "&lt;i&gt;"]
)
def test_names_are_text_and_nothing_else(hostile: str) -> None:
    def change(content: dict[str, Any]) -> None:
        content["model"]["name"] = content["regulation"] = content["certificate"] = hostile
        content["bound"]["not_proved"] = [hostile]
        content["rungs"][1]["failure"] = hostile

    text = render_html(certificate(change))
    plain = Page(render_html(certificate()))
    assert [tag for tag, _ in Page(text).elements] == [tag for tag, _ in plain.elements]


def test_letters_of_every_script_are_kept_and_hidden_marks_are_shown() -> None:
    text = render_html(certificate(lambda content: content["model"].update(name="客户 \u202e модель")))
    assert "客户 [U+202E] модель" in text

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any

import pytest
from pypdf import PdfReader

from service.printing import render_html, render_pdf
from service.printing.document import make_document
from service.printing.fonts import drawable
from service.printing.parts import Command, Facts, Paragraph, Points, Seal, Table
from service.printing.wording import show_hidden
from tests.service.printing.statements import absence, certificate, digest, earlier_content, receipt, text_of

KINDS = {"certificate": certificate, "receipt": receipt, "absence": absence}


def texts_of(bundle: str) -> list[str]:
    """Every sentence and every cell of the document."""
    document = make_document(bundle)
    parts: list[Any] = [document.summary, *(part for section in document.sections for part in section.parts)]
    texts = [document.title, document.lead, *(section.title for section in document.sections)]
    for part in parts:
        match part:
            case Paragraph(text) | Command(text):
                texts.append(text)
            case Points(items):
                texts += items
            case Facts(rows) | Seal(_, Facts(rows)):
                texts += [cell for row in rows for cell in row]
            case Table():
                texts += [part.caption, *part.header, *(cell for row in part.rows for cell in row)]
    return texts


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_say_the_same(kind: str) -> None:
    whole = KINDS[kind]()
    printed, shown = text_of(render_pdf(whole)).replace(" ", ""), unescape(render_html(whole))
    for text in texts_of(whole):
        assert drawable(text).replace(" ", "") in printed, text
        assert text in shown, text


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bundle_gives_the_same_bytes(kind: str) -> None:
    whole = KINDS[kind]()
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(render_pdf, [whole] * 8))) == 1


def test_it_says_what_it_is_on_every_page() -> None:
    reader = PdfReader(io.BytesIO(render_pdf(certificate())))
    assert reader.metadata is not None
    name = "Certificate of forgetting 07f5d746-b099-4e94-8f98-b5a81efe3cc8"
    assert (reader.metadata.title, reader.metadata.author) == (name, "Lethe")
    assert reader.metadata.subject
    assert reader.root_object["/Lang"] == "en"
    for number, page in enumerate(reader.pages, start=1):
        text = page.extract_text()
        assert name in text
        assert f"page {number} of {len(reader.pages)}" in text
        assert [round(side) for side in page.mediabox[2:]] == [595, 842]


def test_all_fonts_are_embedded() -> None:
    for page in PdfReader(io.BytesIO(render_pdf(certificate()))).pages:
        for font in page["/Resources"]["/Font"].values():
            assert "/FontFile2" in font.get_object()["/FontDescriptor"]


def test_no_heading_is_the_last_on_its_page() -> None:
    titles = {section.title for section in make_document(crowded()).sections}
    for page in PdfReader(io.BytesIO(render_pdf(crowded()))).pages:
        lines = [line for line in page.extract_text().splitlines() if line.strip()]
        assert titles.isdisjoint(lines[-3:])


def crowded() -> str:
    def change(content: dict[str, Any]) -> None:
        content["subjects"] = [digest(n) for n in range(40)]
        content["rungs"] *= 8
        content["bound"]["assumptions"] *= 20

    return certificate(change)


def test_forty_people_and_many_ways_fit_and_take_less_than_a_second() -> None:
    whole = crowded()
    render_pdf(whole)
    since = time.process_time()
    printed = render_pdf(whole)
    assert time.process_time() - since < 1
    text = text_of(printed)
    assert all(digest(n) in text for n in range(40))


@pytest.mark.parametrize(
    "name",
    [
        "<b>bold</b> & <font size=99>",
        "客户 модель \u202e",
        "x" * 100,
        "&lt;script&gt;",
        "<para><img src='file:///etc/passwd'/>",
        "%s {0} \\",
    ],
)
def test_names_are_text_and_nothing_else(name: str) -> None:
    text = text_of(render_pdf(certificate(lambda content: content["model"].update(name=name))))
    assert drawable(show_hidden(name)).replace(" ", "") in text.replace(" ", "")


def test_a_reader_is_told_what_the_numbers_in_a_name_are() -> None:
    text = text_of(render_pdf(certificate(lambda content: content["model"].update(name="客户"))))
    assert "[U+5BA2 U+6237]" in text
    assert "printed as their Unicode numbers" in text
    assert "Unicode" not in text_of(render_pdf(certificate()))


def test_a_failure_longer_than_a_page_is_printed() -> None:
    whole = certificate(lambda content: content["rungs"][1].update(failure="it is NaN; " * 1500))
    assert text_of(render_pdf(whole)).count("NaN") == 1500


def test_an_earlier_statement_is_printed() -> None:
    assert "1.000e-09 nats" in text_of(render_pdf(certificate(content=earlier_content(), logged=False)))

from __future__ import annotations

from xml.etree import ElementTree

from averaging.curves.svg_core import Sheet, svg_document, svg_text

SHEET = Sheet(width=320, height=200, font_px=12, title_x=10, title_y=26)


def test_document_is_xml_of_its_size_with_the_title_and_the_elements_in_their_order() -> None:
    root = ElementTree.fromstring(svg_document(SHEET, "a title", ['<circle r="1"/>', "<text>x</text>"]))
    assert root.get("viewBox") == "0 0 320 200"
    assert [child.tag.rpartition("}")[2] for child in root] == ["rect", "text", "circle", "text"]
    assert [child.text for child in root if child.text] == ["a title", "x"]


def test_any_text_stays_text() -> None:
    root = ElementTree.fromstring(svg_document(SHEET, "a <b> & \x1b[2J", [f"<text>{svg_text('<i>&')}</text>"]))
    assert [child.text for child in root if child.text] == ["a <b> & \\x1b[2J", "<i>&"]

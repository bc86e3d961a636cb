"""The list of subjects of a registration, read as a stream: a list that is refused never fills the memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from service.http.errors import field_path
from service.http.strict_json import DECODER
from service.schemas.deletions import IdentityIn
from service.store.datasets.tensor_files import Content, view_arrays
from service.store.errors import InvalidRegistration

PIECE_BYTES = 1 << 18
LONGEST_ITEM = 1 << 14
"""Characters of one subject, several times what the longest valid one has."""
WHITESPACE = re.compile(r"[ \t\n\r]*")
NOT_A_LIST = "not a JSON list of subjects; list one subject per row"
NO_OBJECT = "must be an object with identity_type and identity_value"
INVALID_ITEM = f"not valid JSON without duplicate keys, or longer than {LONGEST_ITEM} characters"


def read_subjects(content: Content, rows: int) -> Iterator[IdentityIn]:
    """Yield the subjects. Raise InvalidRegistration at the first that is invalid, or that has no row."""
    for index, item in enumerate(JsonList(content)):
        if index == rows:
            raise InvalidRegistration("subjects", f"more subjects than the {rows} rows; list one subject per row")
        try:
            yield IdentityIn.model_validate(item)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise InvalidRegistration(f"subjects.{index}.{field_path(first)}".rstrip("."), first["msg"]) from None


def count_rows(records: Content) -> int:
    """Return the number of rows of an uploaded data set, by its header alone."""
    try:
        arrays = view_arrays(records)
    except ValueError as error:
        raise InvalidRegistration("records", f"not a readable safetensors file: {error}") from None
    rows = max((array.shape[0] for array in arrays.values() if array.ndim), default=0)
    if not rows:
        raise InvalidRegistration("records", "the file holds no rows")
    return rows


class JsonList:
    """Items of a JSON list of objects, of which only a window is decoded at a time."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._position = 0

    def __iter__(self) -> Iterator[Any]:
        if self._take() != "[":
            raise InvalidRegistration("subjects", NOT_A_LIST)
        if self._peek() == "]":
            self._take()
        else:
            yield from self._items()
        if self._peek():
            raise InvalidRegistration("subjects", NOT_A_LIST)

    def _items(self) -> Iterator[Any]:
        index, separator = 0, ","
        while separator == ",":
            yield self._item(index)
            index, separator = index + 1, self._take()
        if separator != "]":
            raise InvalidRegistration("subjects", NOT_A_LIST)

    def _item(self, index: int) -> Any:
        if self._peek() != "{":
            raise InvalidRegistration(f"subjects.{index}", NO_OBJECT)
        while len(self._text) - self._position < LONGEST_ITEM and self._refill():
            pass  # an item is decoded only when all of it is there
        try:
            item, self._position = DECODER.raw_decode(self._text, self._position)
        except (ValueError, RecursionError):
            raise InvalidRegistration(f"subjects.{index}", INVALID_ITEM) from None
        return item

    def _take(self) -> str:
        """Return the next character that is no whitespace and pass it; empty at the end."""
        character = self._peek()
        self._position += len(character)
        return character

    def _peek(self) -> str:
        while True:
            match = WHITESPACE.match(self._text, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._text) or not self._refill():
                return self._text[self._position : self._position + 1]

    def _refill(self) -> bool:
        """Decode the next piece. False at the end of the content."""
        if self._offset >= len(self._content):
            return False
        piece = self._content[self._offset : self._offset + PIECE_BYTES]
        self._offset += len(piece)
        try:
            decoded = self._decoder.decode(piece, final=self._offset >= len(self._content))
        except UnicodeDecodeError:
            raise InvalidRegistration("subjects", "not valid UTF-8") from None
        self._text = self._text[self._position :] + decoded
        self._position = 0
        return True

"""QR code drawn as one path: small in a file, without seams between its squares."""

from __future__ import annotations

import itertools

from reportlab.graphics.barcode.qrencoder import QRCode, QRErrorCorrectLevel
from reportlab.graphics.shapes import Drawing, Path
from reportlab.lib.colors import black

MAX_BYTES = 600
"""With more, the squares are too small for a phone to read from paper."""
_SIDE = 112.0
_QUIET = 4  # white squares around it, as the standard requires


def qr_figure(text: str) -> Drawing:
    code = QRCode(None, QRErrorCorrectLevel.M)
    code.addData(text)
    code.make()
    square = _SIDE / (len(code.modules) + 2 * _QUIET)
    path = Path(fillColor=black, strokeColor=None)
    for row, modules in enumerate(code.modules):
        column = 0
        for dark, run in itertools.groupby(map(bool, modules)):
            length = len(list(run))
            if dark:
                _add_bar(path, column + _QUIET, row + _QUIET, length, square)
            column += length
    drawing = Drawing(_SIDE, _SIDE)
    drawing.add(path)
    return drawing


def _add_bar(path: Path, column: int, row: int, length: int, square: float) -> None:
    left, top = column * square, _SIDE - row * square
    path.moveTo(left, top)
    path.lineTo(left + length * square, top)
    path.lineTo(left + length * square, top - square)
    path.lineTo(left, top - square)
    path.closePath()

"""Receipts and certificates as PDF and HTML, rendered from the bundle that people download.

Needs no database, settings or key. The result is a reading copy: it says so, and how to verify the bundle.
"""

from service.printing.html import CONTENT_SECURITY_POLICY, render_html
from service.printing.pdf import render_pdf
from service.printing.statement import Unprintable

__all__ = ["CONTENT_SECURITY_POLICY", "Unprintable", "render_html", "render_pdf"]

"""Receipts and certificates to read and to print: PDF and HTML, from the bundle that people download.

Knows no database, no settings and no key. What is printed is a reading copy: it says so, and how to check the bundle.
"""

from service.printing.html import CONTENT_SECURITY_POLICY, render_html
from service.printing.pdf import render_pdf
from service.printing.statement import Unprintable

__all__ = ["CONTENT_SECURITY_POLICY", "Unprintable", "render_html", "render_pdf"]

"""What goes over the wire for the transparency log. Hashes are hexadecimal."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field, StringConstraints

LARGEST = 2**62
"""Sizes and indices are smaller: what databases can count to."""
HASH = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
NOTE = (
    "lethe.example/lethe\n8\nXcnaeacGWamtVZy3Ad7ZoqudgjqtL0lgz+Nw7/RgQyg=\n\n— lethe.example/lethe "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
)
LEAF = (
    '{"action":"deletion.received","actor":"acme","at":"2026-11-16T08:00:05.000120Z",'
    '"concerns":"0f6c0c4e-6f0c-4c9f-8a35-0c9f8a350c9f","details":{"subjects":["b1946ac9…"]}}\n'
)

Index = Annotated[int, Query(ge=0, lt=LARGEST, description="The entry's place in the log, counted from 0.")]
LeafHash = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f]{64}$"),
    Query(description="The entry's leaf hash, as on a receipt: SHA-256 of a zero byte and its canonical JSON."),
]
Size = Annotated[int, Query(ge=0, lt=LARGEST)]

Note = Annotated[
    str | None,
    Field(description="The signed checkpoint of that size; null if there never was one.", examples=[NOTE]),
]
Proof = Annotated[list[str], Field(examples=[[HASH]])]


class InclusionOut(BaseModel):
    """RFC 6962, 2.1.1: an entry is in the tree."""

    index: int = Field(examples=[5])
    leaf: str = Field(description="The entry's leaf hash.", examples=[HASH])
    size: int = Field(examples=[8])
    proof: Proof
    checkpoint: Note


class ConsistencyOut(BaseModel):
    """RFC 6962, 2.1.2: a smaller tree is the beginning of a larger one."""

    old: int = Field(examples=[6])
    new: int = Field(examples=[8])
    proof: Proof
    checkpoint: Note

"""References of a sample set's certificate: what the bound compares the published draws with."""

from __future__ import annotations

from typing import Literal, get_args

Reference = Literal["stored draws", "posterior"]
"""`posterior`: the posterior given the retained rows. The draws have to pass every check of draws from a posterior.
`stored draws`: the law that the stored draws have, whatever it is, with the likelihood of the forgotten rows divided
out. A weaker promise, made only where a policy asks for it.
"""
REFERENCES: tuple[Reference, ...] = get_args(Reference)
"""All references, from the weaker promise to the stronger."""
DEFAULT_REFERENCE: Reference = "posterior"


def is_as_strong(reference: str, required: str) -> bool:
    """Return whether a reference promises at least as much as the required one."""
    names: tuple[str, ...] = REFERENCES
    return names.index(reference) >= names.index(required)

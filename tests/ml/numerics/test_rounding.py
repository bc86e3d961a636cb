import math
from fractions import Fraction

from ml.numerics.rounding import UNIT, gamma


def test_gamma_bounds_the_error_of_a_long_sum() -> None:
    terms = [1 / (i + 1) for i in range(5000)]
    computed, exact = 0.0, Fraction(0)
    for term in terms:
        computed += term
        exact += Fraction(term)
    error = abs(Fraction(computed) - exact) / exact
    assert 0 < error <= Fraction(gamma(len(terms)))


def test_gamma_is_infinite_where_no_digit_is_left() -> None:
    assert gamma(1) > UNIT
    assert gamma(2.0**53) == math.inf

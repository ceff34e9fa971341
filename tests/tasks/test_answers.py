"""Which number an answer states: the table below is the contract."""

import time
from fractions import Fraction

import pytest

from explorer.tasks.answers import final_answer, find_integers, find_numbers

NUMBERS = [
    ("", []),
    ("no number, nan, inf, -inf, twelve", []),
    ("42", ["42"]),
    ("42.", ["42"]),
    ("-3", ["-3"]),
    ("\u22123", ["-3"]),
    ("10-3", ["10", "3"]),
    ("10 - 3", ["10", "3"]),
    ("(4)-3", ["4", "3"]),
    ("- 5 apples", ["5"]),
    ("1,234", ["1234"]),
    ("12,345,678.90", ["12345678.9"]),
    ("1, 2 and 3", ["1", "2", "3"]),
    ("1,2345", ["1", "2345"]),
    ("3,5", ["3", "5"]),
    ("1{,}234", ["1234"]),
    ("3.50", ["3.5"]),
    (".5", ["0.5"]),
    ("...5", ["5"]),
    ("1e3 2.5e-2", ["1000", "0.025"]),
    ("5e", ["5"]),
    ("$1,200.", ["1200"]),
    ("-$5", ["-5"]),
    ("$-5", ["-5"]),
    ("\\$5", ["5"]),
    ("€ 7,50", ["7", "50"]),
    ("Rs.500", ["500"]),
    ("12 %", ["12"]),
    ("12%", ["12"]),
    ("12\\%", ["12"]),
    ("42kg, 7th, **8**, _9_", ["42", "7", "8", "9"]),
    ("H2O and x2", []),
    ("1/2", ["1/2"]),
    ("-1/2", ["-1/2"]),
    ("1 1/2", ["3/2"]),
    ("-1 1/2", ["-3/2"]),
    ("\\frac{3}{4}", ["3/4"]),
    ("2\\dfrac{3}{4}", ["11/4"]),
    ("1/0", []),
    ("9" * 301, []),
    ("9" * 5000, []),
    ("1" + "0" * 299, ["1" + "0" * 299]),
]

FINAL = [
    ("#### 1,234", "1234"),
    ("It is 3.\n#### -10", "-10"),
    ("#### $1,200.", "1200"),
    ("#### 6\n\nQuestion: 7 + 1?\n#### 8", "6"),
    ("#### 3 + 4 = 7", "7"),
    ("#### none, so 9", "9"),
    ("####\nThe answer is 5.", "5"),
    ("\\boxed{12}", "12"),
    ("\\boxed{1} and then \\boxed{\\frac{1}{2}} after 3", "1/2"),
    ("\\boxed{x = \\$1{,}200 \\text{ dollars}}", "1200"),
    ("\\boxed{12", "12"),
    ("The answer is -3.50", "-3.5"),
    ("The answer is $1,200.", "1200"),
    ("The answer is 12 %", "12"),
    ("The final answer: 5. I used 3 steps.", "5"),
    ("**Answer:** 42 apples (2 bags)", "42"),
    ("The answer is 3. No, wait, the answer is 4. Done in 2.", "4"),
    ("The answer is 1/2 of 10 = 5.", "5"),
    ("The answer is clear. She has 7 left.", "7"),
    ("The answer is 1/2", "1/2"),
    ("He had 3, ate 1 and has 2", "2"),
    ("48/2 = <<48/2=24>>24 clips", "24"),
    ("5 km/h for 2 h make 10 km.", "10"),
    ("no number", None),
    ("nan", None),
    ("The answer is NaN", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "numbers"), NUMBERS)
def test_numbers(text, numbers):
    assert find_numbers(text) == [Fraction(number) for number in numbers]


@pytest.mark.parametrize(("text", "number"), FINAL)
def test_final_answer(text, number):
    assert final_answer(text) == (None if number is None else Fraction(number))


def test_integers_leave_the_others_out():
    assert find_integers("2.0 3.5 -4, 1/2 and 6/3") == [2, -4, 2]


@pytest.mark.parametrize(
    "text", ["1,111" * 9000, "111," * 9000, "1" * 40000, "\\boxed{" * 6000, "answer " * 6000, "$-" * 9999]
)
def test_hostile_text_takes_no_time(text):
    start_s = time.perf_counter()
    final_answer(text)
    assert time.perf_counter() - start_s < 2

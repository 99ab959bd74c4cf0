"""The task: a number in words, and its digits."""

import random

ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def words(number: int) -> str:
    """A number below a million in English words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")
    if number < 1000:
        rest = f" {words(number % 100)}" if number % 100 else ""
        return f"{ONES[number // 100]} hundred{rest}"
    rest = f" {words(number % 1000)}" if number % 1000 else ""
    return f"{words(number // 1000)} thousand{rest}"


def example(rng: random.Random) -> tuple[str, str]:
    """(question, answer)"""
    number = rng.randrange(100_000)
    return f"In digits, {words(number)} is", f" {number}"

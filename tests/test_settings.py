"""Options: one line each, from which flags, checks and messages come."""

import argparse
from dataclasses import dataclass, fields

import pytest

from explorer.engine.config import DecodeConfig
from explorer.errors import ExplorerError, SettingError
from explorer.rules import RULES
from explorer.settings import add_flags, check_ranges, from_flags, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One field of every kind."""

    count: int = setting(3, "how many", low=1, high=9)
    share: float = setting(0.5, "how much", low=0.0, high=1.0)
    name: str = setting("a", "which", choices=("a", "b"))
    note: str = setting("", "free text")
    limit: int | None = setting(None, "at most", low=0, high=5)
    names: tuple[str, ...] = setting((), "several")
    is_loud: bool = setting(False, "loudness")

    def __post_init__(self) -> None:
        check_ranges(self)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"count": 1},
        {"count": 9},
        {"share": 0.0},
        {"share": 1},
        {"name": "b"},
        {"limit": 0},
        {"limit": None},
        {"names": ("x", "y")},
        {"is_loud": True},
    ],
)
def test_allowed_values_pass(values):
    config = Config(**values)
    assert {name: getattr(config, name) for name in values} == values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, r"count is 0; it must be in \[1, 9\] \(how many\)\."),
        ({"count": 10}, r"count is 10; it must be in \[1, 9\]"),
        ({"count": 2.0}, r"count is 2\.0; it must be a whole number \(how many\)\."),
        ({"count": True}, r"count is True; it must be a whole number"),
        ({"count": "2"}, r"count is '2'; it must be a whole number"),
        ({"share": -0.1}, r"share is -0\.1; it must be in \[0\.0, 1\.0\] \(how much\)\."),
        ({"share": 1.0001}, r"share is 1\.0001; it must be in"),
        ({"share": float("nan")}, r"share is nan; it must be in \[0\.0, 1\.0\]"),
        ({"share": float("inf")}, r"share is inf; it must be in"),
        ({"share": "half"}, r"share is 'half'; it must be a number \(how much\)\."),
        ({"share": None}, r"share is None; it must be a number"),
        ({"count": None}, r"count is None; it must be a whole number"),
        ({"limit": 6}, r"limit is 6; it must be in \[0, 5\] \(at most\)\."),
        ({"limit": 1.5}, r"limit is 1\.5; it must be a whole number"),
        ({"name": "c"}, r"name is 'c'; it must be one of a, b\."),
        ({"name": None}, r"name is None; it must be one of a, b\."),
    ],
)
def test_other_values_are_refused_with_what_is_allowed(values, message):
    with pytest.raises(SettingError, match=message):
        Config(**values)


def test_setting_errors_are_meant_for_the_user():
    assert issubclass(SettingError, ExplorerError)


def parsed(config_class, words):
    parser = argparse.ArgumentParser()
    add_flags(parser, config_class)
    return from_flags(config_class, parser.parse_args(words))


def test_no_flags_give_the_defaults():
    assert parsed(Config, []) == Config()
    assert parsed(DecodeConfig, []) == DecodeConfig()


def test_every_flag_reaches_its_field():
    words = [
        "--count=4",
        "--share=0.25",
        "--name=b",
        "--note=hello",
        "--limit=2",
        "--names=x",
        "--names=y",
        "--is-loud",
    ]
    assert parsed(Config, words) == Config(
        count=4, share=0.25, name="b", note="hello", limit=2, names=("x", "y"), is_loud=True
    )
    assert parsed(Config, ["--no-is-loud"]) == Config()


def test_flags_are_checked_like_the_constructor():
    with pytest.raises(SettingError, match=r"count is 12; it must be in \[1, 9\]"):
        parsed(Config, ["--count", "12"])


def test_flags_of_another_type_are_refused(capsys):
    for words in (["--count", "2.5"], ["--share", "much"], ["--name", "c"], ["--unknown", "1"]):
        with pytest.raises(SystemExit):
            parsed(Config, words)
    assert "invalid choice: 'c'" in capsys.readouterr().err


def test_help_says_what_each_flag_is_and_its_default():
    parser = argparse.ArgumentParser()
    add_flags(parser, DecodeConfig)
    text = " ".join(parser.format_help().split())
    for spec in fields(DecodeConfig):
        assert "--" + spec.name.replace("_", "-") in text
        assert spec.metadata["help"] in text
    assert "tokens drafted per round (K) (default: 2)" in text


def test_decode_config_holds_every_rule():
    assert [DecodeConfig(rule=rule).rule for rule in RULES] == list(RULES)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rule": "magic"}, r"rule is 'magic'; it must be one of ar, exact, lossy, static, dynamic\."),
        ({"draft_length": 0}, r"draft_length is 0; it must be in \[1, 16\] \(tokens drafted per round \(K\)\)\."),
        ({"draft_length": 70}, r"draft_length is 70; it must be in \[1, 16\]"),
        ({"temperature": -1.0}, r"temperature is -1\.0; it must be in \[0\.0, 2\.0\]"),
        ({"top_p": 0.0}, r"top_p is 0\.0; it must be in \[0\.01, 1\.0\]"),
        ({"lenience": 0.0}, r"lenience is 0\.0; it must be in \[0\.01, 1\.0\]"),
        ({"target_weight": 1.5}, r"target_weight is 1\.5; it must be in \[0\.0, 1\.0\]"),
        ({"max_new_tokens": 0}, r"max_new_tokens is 0; it must be in \[1, 4096\]"),
        ({"seed": -1}, r"seed is -1; it must be in \[0, "),
    ],
)
def test_decode_config_refuses(values, message):
    with pytest.raises(SettingError, match=message):
        DecodeConfig(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """Numbers that may be given several times."""

    ranks: tuple[int, ...] = setting((), "ranks", low=1, high=9)
    batch: tuple[int, ...] = setting((1,), "rows", low=1, high=9)

    def __post_init__(self) -> None:
        check_ranges(self)


def test_a_flag_given_several_times_takes_the_place_of_the_default():
    parser = argparse.ArgumentParser()
    add_flags(parser, Several)

    given = from_flags(Several, parser.parse_args(["--ranks=3", "--ranks=5", "--batch=2"]))

    assert (given.ranks, given.batch) == ((3, 5), (2,))
    assert from_flags(Several, parser.parse_args([])) == Several()


def test_every_number_of_a_tuple_is_checked():
    with pytest.raises(SettingError, match=r"ranks is 10; it must be in \[1, 9\] \(ranks\)\."):
        Several(ranks=(3, 10))
    with pytest.raises(SettingError, match=r"batch is 2\.0; it must be a whole number"):
        Several(batch=(2.0,))

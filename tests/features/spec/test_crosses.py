"""Crosses in short: what they mean, and messages for wrong ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.errors import SpecError
from ctr.features.spec import FeatureSpec, parse_spec

HEAD = """version: 1
source: {format: delimited}
label: y
fields:
  - {name: ip, type: category}
  - {name: device, type: category}
  - {name: ad_a, type: category}
  - {name: ad_b, type: number, transform: log}
  - {name: ad b, column: ad_b, type: number, transform: edges, edges: [1]}
groups:
  user: [ip, device]
  part: [device, ad_*]
crosses:
"""


def spec_of(*crosses: str, head: str = HEAD) -> FeatureSpec:
    return parse_spec(head + "".join(f"- {cross}\n" for cross in crosses), "my.yaml")


@pytest.mark.parametrize(
    ("short", "meant"),
    [
        ("ip * device", ["ip * device"]),
        ("ip  * ad b * device", ["ip * ad b * device"]),
        ("user * ad_*", ["ip * ad_a", "ip * ad_b", "device * ad_a", "device * ad_b"]),
        ("ad_* * ad*b", ["ad_a * ad_b", "ad_a * ad b", "ad_b * ad b"]),
        ("user * user", ["ip * device"]),
        ("part * part", ["device * ad_a", "device * ad_b", "ad_a * ad_b"]),
        ("user * part", ["ip * device", "ip * ad_a", "ip * ad_b", "device * ad_a", "device * ad_b"]),
        ("user * user * ad b", ["ip * device * ad b"]),
        ("ip * user", ["ip * device"]),
        ("part * part * part", ["device * ad_a * ad_b"]),
        ('"[ip device] * [ad_a ad_b]"', ["ip * ad_a", "ip * ad_b", "device * ad_a", "device * ad_b"]),
        (
            '"[i* device]  * [ad*]"',
            [f"{a} * {b}" for a in ("ip", "device") for b in ("ad_a", "ad_b", "ad b")],
        ),
        ('"[ip, ad b] * [ ad_a,]"', ["ip * ad_a", "ad b * ad_a"]),
        ("ad b * [ip]", ["ad b * ip"]),
        (
            '"[user ad_a] * [ad_a part]"',
            ["ip * ad_a", "ip * device", "ip * ad_b", "device * ad_a", "device * ad_b", "ad_a * ad_b"],
        ),
        ('"[ip ad_a ad_b] * [ip ad_a ad_b]"', ["ip * ad_a", "ip * ad_b", "ad_a * ad_b"]),
        ('"[ip i* ip] * device"', ["ip * device"]),
        ('"[a]d_* * ip"', ["ad_a * ip", "ad_b * ip"]),
    ],
)
def test_what_a_short_cross_means(short: str, meant: list[str]) -> None:
    spec = spec_of(short)
    assert [cross.name for cross in spec.crosses] == meant
    assert all(cross.name == " * ".join(cross.of) for cross in spec.crosses)
    written = spec_of(*(f"{{name: {c.name}, of: [{', '.join(c.of)}]}}" for c in spec.crosses))
    assert written == spec
    assert written.fingerprint == spec.fingerprint
    again = parse_spec(spec.to_yaml(), "again")
    assert again == spec
    assert "of: [" in spec.to_yaml()


def test_every_pair_of_all_fields() -> None:
    assert len(spec_of('"* * *"').crosses) == 5 * 4 // 2
    assert len(spec_of('"* * * * *"').crosses) == 5 * 4 * 3 // (3 * 2)


def test_patterns_leave_out_what_cannot_be_crossed() -> None:
    head = HEAD.replace("groups:", "  - {name: ad_c, column: w, type: number, transform: linear}\ngroups:")
    assert [cross.name for cross in spec_of("ip * ad_*", head=head).crosses] == ["ip * ad_a", "ip * ad_b"]
    with pytest.raises(
        SpecError, match=r"crosses\[0\]\.of\[1\]: 'ad_c' keeps its value .*only buckets cross"
    ):
        spec_of("ip * ad_c", head=head)


def test_groups_and_the_cap_do_not_enter_the_fingerprint() -> None:
    spec = spec_of("ip * device")
    other = spec_of("ip * device", head=HEAD.replace("user:", "who:") + "").fingerprint
    capped = parse_spec(spec.to_yaml() + "most_features: 50\n", "my.yaml")
    assert capped.most_features == parse_spec(capped.to_yaml(), "again").most_features == 50
    assert other == spec.fingerprint == capped.fingerprint
    assert "most_features" not in spec.to_yaml()


@pytest.mark.parametrize(
    ("crosses", "message"),
    [
        (["ip * zip"], r"my\.yaml:14: crosses\[0\]: there is no field, group or pattern of fields 'zip'"),
        (["ip * zip_*"], r"there is no field, group or pattern of fields 'zip_\*'"),
        (["ip"], r"'ip' is no cross; write two fields or more with ` \* ` between: site \* hour"),
        (["ip*device"], r"'ip\*device' is no cross"),
        (["ip * ip"], r"crosses\[0\]\.of\[1\]: 'ip' is there twice, but an example has only one value of it"),
        (["{name: x, of: [ip, ip]}"], r"crosses\[0\]\.of\[1\]: 'ip' is there twice"),
        (["user * user * user"], r"'user \* user \* user' leaves nothing to cross"),
        (["{name: x, of: [ip, user]}"], r"crosses\[0\]\.of\[1\]: there is no field 'user'; cross names"),
        (["ip * device", "user * user"], r"my\.yaml:15: crosses\[1\]: 'ip \* device' is there twice"),
        (
            ["{name: x, of: [ip, device]}", "device * ip"],
            r"15: crosses\[1\]: .* already, as crosses\[0\] has",
        ),
        (["5"], r"crosses\[0\]: expected text such as site \* hour, or a mapping of keys to values, got 5"),
        (["* * *"], r"my\.yaml:14:4: not valid YAML: text that begins with \* or \[ must be in quotes"),
        (["[ip device] * [ad_*]"], r"my\.yaml:14:16: not valid YAML: text that begins with \* or \[ must"),
        (["ip * [zip ad_a]"], r"there is no field, group or pattern of fields 'zip', as in '\[zip ad_a\]'"),
        (["ip * [ad b]"], r"there is no field, group or pattern of fields 'ad', as in '\[ad b\]'"),
        (["ip * [ , ]"], r"'\[ , \]' is empty; write fields into it, such as \[site hour\]"),
        (["ip * [ad_a"], r"there is no field, group or pattern of fields '\[ad_a'"),
        (["{name: ip * ad_a, of: [ip, ad_b]}", "ip * ad_a"], r"crosses\[1\]: 'ip \* ad_a' is there twice"),
    ],
)
def test_a_wrong_cross(crosses: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(*crosses)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("user: [ip, device]", "ip: [device]", r"my\.yaml:11: groups\.ip: 'ip' is the name of a field"),
        ("user: [ip, device]", "user: [ip, os]", r"groups\.user\[1\]: there is no field 'os'"),
        ("user: [ip, device]", "user: [ip, i*]", r"groups\.user\[1\]: 'ip' is there twice"),
        ("user: [ip, device]", "user: []", r"groups\.user: a group has at least one field"),
        ("user: [ip, device]", "user: ip", r"groups\.user: expected a list, got 'ip'"),
        ("crosses:", "most_features: 5\ncrosses:", r"14: crosses: an example can have 7 features, more than"),
    ],
)
def test_wrong_groups_and_too_many_features(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of("ip * device", head=HEAD.replace(old, new))


@pytest.mark.parametrize("wrong", ["[ip, os]", "[ip, ip]", "[ip, i*]", "[]"])
def test_groups_without_crosses_may_be_of_any_fields(wrong: str) -> None:
    head = HEAD.replace("[ip, device]", wrong).removesuffix("crosses:\n")
    spec = parse_spec(head, "my.yaml")
    assert parse_spec(spec.to_yaml(), "again").fields == spec.fields
    assert spec.crosses == ()


def test_the_bounds_of_lists_are_checked() -> None:
    head = HEAD.replace(
        "groups:", "  - {name: tags, type: list, most: 200}\n  - {name: free, type: list}\ngroups:"
    )
    with pytest.raises(
        SpecError, match=r"crosses: an example can have 20,106 features, more than the 10,000"
    ):
        spec_of("tags * tags", head=head)
    assert spec_of("tags * free", "ip * tags", "free * free * free", head=head).features_per_example == 6
    with pytest.raises(SpecError, match=r"fields: an example can have 10,201 features"):
        spec_of(head=head.replace("most: 200", "most: 10_195").replace("crosses:\n", ""))


def test_too_many_combinations_are_refused_at_once() -> None:
    many = "".join(f"  - {{name: f{i}, type: category}}\n" for i in range(200))
    head = HEAD.replace("groups:\n", many + "groups:\n")
    with pytest.raises(
        SpecError, match=r"crosses\[0\]: .* stands for 20,910 crosses, more than the 10,000 of"
    ):
        spec_of('"* * *"', head=head)
    head = head.replace("label: y\n", "label: y\nmost_features: 1_000_000\n")
    for shorts, tried in (
        (
            ['"f* * *1 * f*2 * f* * f1* * f2* * f3* * *"'],
            r"up to 44,053,680,000,000 crosses, more than the 250,000 that",
        ),
        (['"f1* * f1* * f1* * f1*"'], r"up to 5,989,005 crosses, more"),
        (['"user * user * user * f* * f* * f*"'], r"up to 1,313,400 crosses, more"),
        (["f1* * f1*", "f1* * f5* * f*"], r"up to 244,200 crosses besides the 6,105 of other lines, more"),
    ):
        with pytest.raises(SpecError, match=tried):
            spec_of(*shorts, head=head)


@settings(max_examples=200)
@given(st.lists(st.text("*ip[]! _ad", max_size=12), max_size=3))
def test_any_text_is_crosses_or_an_error(crosses: list[str]) -> None:
    try:
        spec = spec_of(*map(json.dumps, crosses))
    except SpecError:
        return
    assert parse_spec(spec.to_yaml(), "again") == spec

"""The native library built with AddressSanitizer (`make asan`): no access outside its memory in the tests of it. The
fences of test_shapes.py find some of them in every run."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paceline.native import build

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/native/test_shapes.py",
    "tests/model/test_grouped.py",
    "tests/model/test_native.py",
    "tests/model/test_native_states.py",
    "tests/model/test_runs.py",
    "tests/model/test_mixtures.py",
    "tests/model/test_narrow.py",
    "tests/model/test_joined.py",
    "tests/model/test_memo.py",
    "tests/model/test_programs.py",
    "tests/draft/test_feature_runs.py",
    "tests/draft/test_head_runs.py",
    "tests/draft/test_topk.py",
    "tests/engine/test_adapters.py::test_the_native_decoder_adds_what_the_twin_adds",
)
WISHES = ("asan", "asan,avxvnni", "asan,avx2")
LACKS = (
    "this machine has no AVX-512 BF16",
    "this CPU has no AMX to compare with",
    "this CPU has no VNNI to stand in for AVX-VNNI",
)
"""Why a test of them may be skipped: it is of a unit that this CPU does not have."""


def runtime() -> str | None:
    """g++'s own runtime of the sanitizer, which has to be there before anything else is."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    path = found.stdout.strip()
    return path if Path(path).is_absolute() else None


def proof(report: str) -> tuple[Counter[str], set[str], list[str]]:
    """({module: tests that passed}, the units that they name, the skips of other reasons than a unit that is not here)
    of pytest's report."""
    passed, units, others = Counter[str](), set[str](), list[str]()
    for case in ElementTree.fromstring(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is None:
            passed[case.attrib["classname"]] += 1
            units |= {it.name for it in build.Unit if f"[{it.name}-" in case.attrib["name"]}
        elif skipped.attrib["message"] not in LACKS:
            others.append(f"{case.attrib['classname']}: {skipped.attrib['message']}")
    return passed, units, others


def missing(wish: str) -> str:
    """What this CPU lacks for a wish; "" if nothing."""
    has = build.abilities()
    if wish == "asan,avxvnni":
        return "" if "avx_vnni" in has else "AVX-VNNI"
    return "" if wish == "asan" or has >= build.NEEDED | build.LESS else "more than AVX2"


def test_what_was_skipped_proves_nothing() -> None:
    skipped = '<testcase classname="tests.a.test_b"><skipped message="{}"/></testcase>'
    ran = '<testcase classname="tests.a.test_a" name="test_a[DOT-1-33]"/>'
    assert proof(f"<a>{ran}{ran}{skipped.format(LACKS[0])}</a>") == ({"tests.a.test_a": 2}, {"DOT"}, [])
    assert proof(f"<a>{skipped.format('no library')}</a>") == ({}, set(), ["tests.a.test_b: no library"])


@pytest.mark.parametrize(
    ("has", "lacks"),
    [
        (build.LESS, {"asan,avx2": "more than AVX2", "asan,avxvnni": "AVX-VNNI"}),
        (build.LESS | {"avx_vnni"}, {"asan,avx2": "more than AVX2"}),
        (build.LESS | build.NEEDED, {"asan,avxvnni": "AVX-VNNI"}),
        (build.LESS | build.NEEDED | build.AMX | {"avx_vnni"}, {}),
    ],
)
def test_what_a_cpu_lacks_has_a_name(has: set[str], lacks: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "abilities", lambda: frozenset(has))
    assert {wish: name for wish in WISHES if (name := missing(wish))} == lacks


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("wish", WISHES)
def test_no_access_outside_its_memory(tmp_path: Path, wish: str) -> None:
    """With the most that this CPU has (AMX and AVX-512 with its VNNI, and what AVX2 has of them), as on one that has
    AVX2 with AVX-VNNI, and as on one that has AVX2 alone."""
    library = runtime()
    if library is None or build.machine_flags() is None:
        pytest.skip("nothing native is written for this CPU, or g++ has no AddressSanitizer")
    if lacks := missing(wish):
        pytest.skip(f"this CPU has no {lacks}")
    environ = {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:abort_on_error=0:exitcode=77",
        "PACELINE_NATIVE": wish,
        "PACELINE_CACHE": str(tmp_path),
        "CXX": shutil.which("g++") or "g++",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=1800",
         f"--junitxml={tmp_path / 'report.xml'}", *TESTS],
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "AddressSanitizer" not in done.stdout + done.stderr, (done.stdout + done.stderr)[-6000:]
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert list(tmp_path.glob("decoder-*.so")), "the library was built"
    passed, units, others = proof((tmp_path / "report.xml").read_text(encoding="utf-8"))
    assert not others, others
    most = wish == "asan" and build.machine_flags() == build.WIDE
    at_hand = {it.name for it in build.Unit} if most else {build.Unit.SHORT.name}
    assert units == at_hand, f"nothing ran of {at_hand - units}"
    modules = {each.partition(".py")[0].replace("/", ".") for each in TESTS}
    assert modules == set(passed), f"nothing ran of {modules - set(passed)}"

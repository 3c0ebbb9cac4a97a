"""The choice of a kernel table: by CPU, by HASTEN_ISA, and on CPUs that lack what this one has (FR-064)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.ops import kernels

ROOT = Path(__file__).resolve().parents[2]
ISA_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"],
}


def chosen_with(wish: str | None) -> subprocess.CompletedProcess[str]:
    """A fresh process asks for the automatic table."""
    env = {k: v for k, v in os.environ.items() if k != "HASTEN_ISA"} | ({"HASTEN_ISA": wish} if wish is not None else {})
    code = "from hasten.ops.kernels import selected_isa\nprint(selected_isa())"
    env["PYTHONPATH"] = str(ROOT / "src")
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def cpu_flags() -> set[str]:
    """What the operating system says of the CPU, apart from our own detection."""
    return set(re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[0].split())


def test_fr_064_detection_agrees_with_the_operating_system():
    flags = cpu_flags()
    expected = ["scalar"]
    if {"avx2", "fma", "f16c"} <= flags:
        expected.append("avx2")
        if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= flags:
            expected.append("avx512")
    assert kernels.available_isas() == expected


def test_fr_064_the_best_table_is_chosen_and_can_be_overridden():
    assert chosen_with(None).stdout.strip() == kernels.available_isas()[-1]
    assert chosen_with("").stdout.strip() == kernels.available_isas()[-1]
    assert chosen_with("auto").stdout.strip() == kernels.available_isas()[-1]
    for isa in kernels.available_isas():
        assert chosen_with(isa).stdout.strip() == isa


def test_fr_064_an_unknown_or_missing_table_is_refused_by_name():
    missing = [isa for isa in ("avx2", "avx512") if isa not in kernels.available_isas()]
    for wish in ["sse9", "AVX2", *missing]:
        done = chosen_with(wish)
        assert done.returncode == 1
        message = done.stderr.strip().splitlines()[-1]
        assert f"HASTEN_ISA asks for the instruction set '{wish}'" in message
        assert "available here: " + ", ".join(kernels.available_isas()) in message
    with pytest.raises(ValueError, match="the caller asks for the instruction set 'neon', which is unknown"):
        kernels.selected_isa("neon")


@pytest.mark.full
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("optimise", ["-O0", "-O3"])
def test_fr_064_no_shared_code_is_built_for_a_newer_cpu(isa, optimise, tmp_path):
    """The linker keeps one copy of a weak function, perhaps this file's: it must not have any, nor run code at start."""
    made = tmp_path / "isa.o"
    source = ROOT / "csrc" / "kernels" / f"isa_{isa}.cc"
    flags = ["-std=c++20", optimise, "-Wno-psabi", "-fPIC", f"-I{ROOT / 'csrc'}", *ISA_FLAGS[isa]]
    subprocess.run(["g++", *flags, "-c", str(source), "-o", str(made)], check=True, timeout=280)
    symbols = subprocess.run(["nm", "-C", str(made)], capture_output=True, text=True, check=True).stdout
    defined = [line.split(maxsplit=2)[1:] for line in symbols.splitlines() if not line.startswith(" ")]
    assert [name for kind, name in defined if kind in "WVu"] == []
    assert [name for kind, name in defined if kind.isupper()] == [f"hasten::k{isa.title()}Kernels"]
    sections = subprocess.run(["objdump", "-h", str(made)], capture_output=True, text=True, check=True).stdout
    assert ".init_array" not in sections


@pytest.mark.full
@pytest.mark.timeout(900)  # builds the core
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-user (Debian package) to be another CPU")
def test_fr_064_a_cpu_without_avx2_runs_the_scalar_table(tmp_path):
    """Nehalem has no AVX at all, Haswell has AVX2: neither is killed, each names its table, both compute the same bits."""
    cmake = shutil.which("cmake") or str(Path(sys.executable).with_name("cmake"))
    configure = [cmake, "-S", str(ROOT), "-B", str(tmp_path), "-DHASTEN_PYTHON=OFF", "-DHASTEN_CPP_TESTS=ON"]
    subprocess.run([*configure, "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=subprocess.DEVNULL, timeout=60)
    build = [cmake, "--build", str(tmp_path), "--parallel", "2", "--target", "dispatch_test"]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, timeout=600)
    program = str(tmp_path / "dispatch_test")
    env = {k: v for k, v in os.environ.items() if k != "HASTEN_ISA"}

    def run(*command: str) -> str:
        done = subprocess.run([*command, program], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    outputs = {cpu: run("qemu-x86_64", "-cpu", cpu) for cpu in ("Nehalem", "Haswell")} | {"here": run()}
    assert "table scalar " in outputs["Nehalem"]
    assert "table avx2 " in outputs["Haswell"]
    assert f"table {kernels.available_isas()[-1]} " in outputs["here"]
    assert len({re.findall(r"hash (\w+)", text)[0] for text in outputs.values()}) == 1

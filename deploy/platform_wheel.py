"""Build the wheel with compiled kernels: python -m deploy.platform_wheel WHEEL

WHEEL is the universal one. A copy next to it fits this Python, where numba's own wheel fits, and
pip prefers it there. Its kernels are for x86-64-v3; other processors compile theirs.
"""

import base64
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

KERNELS = "dualstream/solvers/kernels"


def tags() -> list[str]:
    """Tags of the wheel, such as cp311-cp311-manylinux_2_28_x86_64: those of numba's wheel."""
    lines = (distribution("numba").read_text("WHEEL") or "").splitlines()
    return [line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: ")]


def compile_into(folder: Path) -> None:
    """Compile the kernels of an unpacked wheel, as its files."""
    command = ["-m", "dualstream.service.server.compile_kernels", "--copy-to", KERNELS]
    environment = {"PYTHONPATH": str(folder), "DUALSTREAM_CPU": "x86-64-v3"}
    environment = os.environ | environment  # noqa: TID251
    subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=True)  # noqa: S603


def build(universal: Path) -> Path:
    """Write the wheel next to the universal one. Returns its path."""
    name, version, *_ = universal.name.split("-")
    fits = tags()
    python, abi, _ = fits[0].split("-")
    platforms = ".".join(tag.rpartition("-")[2] for tag in fits)
    info = f"{name}-{version}.dist-info"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with ZipFile(universal) as wheel:
            wheel.extractall(folder)
        compile_into(folder)
        _set_tags(folder / info / "WHEEL", fits)
        (folder / info / "RECORD").unlink()
        built = universal.with_name(f"{name}-{version}-{python}-{abi}-{platforms}.whl")
        _pack(folder, built, f"{info}/RECORD")
    return built


def _set_tags(file: Path, fits: list[str]) -> None:
    lines = [line for line in file.read_text().splitlines() if line.startswith(("Wheel", "Gen"))]
    tag_lines = [f"Tag: {tag}" for tag in fits]
    file.write_text("\n".join([*lines, "Root-Is-Purelib: false", *tag_lines, ""]))


def _pack(folder: Path, wheel: Path, record: str) -> None:
    """Write the files of a folder as a wheel, with the record of their digests last."""
    # Bytecode, which the compilation left, belongs to its machine.
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    rows = []
    with ZipFile(wheel, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for path in paths:
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append(f"{name},sha256={digest.decode()},{len(content)}\n")
            archive.write(path, name)
        archive.writestr(record, "".join([*rows, f"{record},,\n"]))


def main(universal: str) -> None:
    if platform.machine() != "x86_64":
        print(f"no platform wheel: its kernels are for x86_64, not {platform.machine()}")  # noqa: T201
        return
    print(f"wrote {build(Path(universal))}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])

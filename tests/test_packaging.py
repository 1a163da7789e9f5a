"""Wheel and sdist: contents, installation, and a server that runs from the installed package.

Both are built from a `git archive` of the working tree, so that the symbolic links in `dualstream/`
pass through git. Packages named `service` and `solvers` exist on the public index. The fresh
environment has packages of these names, which an installation must neither replace nor import.
"""

import os
import platform
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import httpx
import pytest
import setuptools
from packaging.tags import Tag, sys_tags
from packaging.utils import parse_wheel_filename

from deploy.platform_wheel import build as build_platform_wheel
from dualstream import __version__
from dualstream.solvers import jit

ROOT = Path(__file__).parent.parent
LINKS = ("client", "consume", "service", "solvers", "wire")
NAMESAKES = ("service", "solvers")
MARKER = "MARKER = 'a package of another project'\n"
DATA_FILES = (
    *("service/static/index.html", "service/static/js/main.js", "service/static/errors.md"),
    *("service/static/vendor/uplot/uPlot.iife.min.js", "service/cli/demo/adult.xz"),
    *("service/journal/redis/lua/append.lua", "py.typed"),
)
CODE_SUFFIXES = (".py", ".lua", ".xz", ".typed", ".html", ".css", ".js", ".svg")
ANSWERED_WITHIN_S = 60


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Standard output of a command; fails the test with the command's output."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def clean_environment(**added: str) -> dict[str, str]:
    """This process's environment without variables that add to the import path.

    Kernels run as plain Python: their cache belongs to a path, and compiling them takes minutes.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {"NUMBA_DISABLE_JIT": "1"} | added


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the working tree, including changes that are not committed, made by git archive."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    folder = tmp_path_factory.mktemp("packaging")
    objects = run("git", "rev-parse", "--path-format=absolute", "--git-path", "objects").strip()
    # A temporary index and object store: the repository itself is not written to.
    (folder / "objects").mkdir()
    env = clean_environment(
        GIT_INDEX_FILE=str(folder / "index"),
        GIT_OBJECT_DIRECTORY=str(folder / "objects"),
        GIT_ALTERNATE_OBJECT_DIRECTORIES=objects,
    )
    run("git", "add", "--all", env=env)
    written = run("git", "write-tree", env=env).strip()
    run("git", "archive", "--output", folder / "tree.tar", written, env=env)
    with tarfile.open(folder / "tree.tar") as archive:
        # Debian's Python 3.11.2 has no filters.
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(folder / "tree")
    return folder / "tree"


def build(tree: Path, kind: str, into: Path) -> Path:
    """Build a wheel or an sdist with the setuptools of this environment."""
    run(
        *(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", into, tree),
        cwd=into,
    )
    [built] = into.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tree, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def platform_wheel(wheel: Path) -> Path:
    """The wheel with compiled kernels."""
    if jit.DISABLED or platform.machine() != "x86_64" or jit.CPU != "x86-64-v3":
        pytest.skip("needs the processor and the compiler of the wheel")
    return build_platform_wheel(wheel)


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tree, "sdist", tmp_path_factory.mktemp("sdist"))


def files_of_links(tree: Path) -> set[str]:
    """Files that a package must contain, as paths below `dualstream/`."""
    return {
        str(path.relative_to(tree))
        for name in LINKS
        for path in (tree / name).rglob("*")
        if path.suffix in CODE_SUFFIXES
    }


def below_dualstream(names: list[str], parent: str = "") -> Counter[str]:
    prefix = f"{parent}dualstream/"
    return Counter(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def test_dualstream_has_symbolic_links_and_two_files_alone():
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    entries = [line.split() for line in run("git", "ls-files", "-s", "dualstream").splitlines()]
    assert {path.removeprefix("dualstream/"): mode for mode, _, _, path in entries} == {
        **dict.fromkeys(LINKS, "120000"),
        **dict.fromkeys(("__init__.py", "py.typed"), "100644"),
    }


def test_git_archive_keeps_the_symbolic_links(tree):
    assert {name: os.readlink(tree / "dualstream" / name) for name in LINKS} == {
        name: f"../{name}" for name in LINKS
    }


def test_wheel_contains_dualstream_alone_and_all_of_it(tree, wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {PurePosixPath(name).parts[0] for name in names}
    assert tops == {"dualstream", f"dualstream-{__version__}.dist-info"}
    result = below_dualstream(names)
    assert set(result.values()) == {1}
    assert {*DATA_FILES, "__init__.py", *files_of_links(tree)} <= set(result)


def test_platform_wheel_adds_compiled_kernels_and_fits_as_numba_does(wheel, platform_wheel):
    first, second = zipfile.ZipFile(wheel), zipfile.ZipFile(platform_wheel)
    info = f"dualstream-{__version__}.dist-info"
    names, added = set(first.namelist()), set(second.namelist()) - set(first.namelist())
    assert names <= set(second.namelist())
    changed = {one for one in names if first.read(one) != second.read(one)}
    assert changed == {f"{info}/RECORD", f"{info}/WHEEL"}
    folder = f"dualstream/solvers/kernels/{jit.PLATFORM}/"
    kernels = {one.removeprefix(folder).rpartition("-")[0] for one in added}
    assert {"complete", "dualstream.solvers.online.asset.learn_rows"} <= kernels
    assert len(added) == len(kernels) > 200
    assert platform_wheel.stat().st_size < 6 << 20
    # Its tags are those of its name, and pip takes it before the universal one.
    lines = second.read(f"{info}/WHEEL").decode().splitlines()
    _, _, _, tags = parse_wheel_filename(platform_wheel.name)
    assert {line for line in lines if line.startswith("Tag")} == {f"Tag: {tag}" for tag in tags}
    order = list(sys_tags())
    assert min(map(order.index, tags & set(order))) < order.index(Tag("py3", "none", "any"))
    rows = second.read(f"{info}/RECORD").decode().splitlines()
    assert [row.split(",")[0] for row in rows] == second.namelist()


def test_sdist_contains_each_source_once(tree, sdist):
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    assert all(member.isreg() for member in members)
    names = [member.name for member in members]
    result = below_dualstream(names, f"dualstream-{__version__}/")
    assert set(result.values()) == {1}
    assert {*DATA_FILES, "__init__.py", *files_of_links(tree)} <= set(result)
    tops = {PurePosixPath(name).parts[1] for name in names}
    assert not tops & {*LINKS, "tests", "load_tests", "docs"}


class Environment:
    """A fresh virtual environment that borrows the dependencies of the present one.

    The path file adds the present site-packages after the new one. Path files in there are not
    read, so the editable installation of this tree stays invisible.
    """

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        venv.create(folder, symlinks=True)
        [self.packages] = (folder / "lib").glob("python*/site-packages")
        for name in NAMESAKES:
            (self.packages / name).mkdir()
            (self.packages / name / "__init__.py").write_text(MARKER)
        present = [str(Path(module.__file__).parents[1]) for module in (setuptools, httpx)]
        (self.packages / "dependencies.pth").write_text("\n".join(present))

    def install(self, package: Path) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python", "install", "--quiet")
        options = ("--no-deps", "--no-index", "--no-build-isolation", "--no-compile")
        run(*pip, *options, package, env=clean_environment())

    def python(self, program: str, cwd: Path) -> str:
        return run(self.bin / "python", "-c", program, cwd=cwd, env=clean_environment())


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "env")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


IMPORTED = """
from dualstream import client, consume, service as own_service, solvers as own_solvers, wire
import service, solvers
for module in (client, consume, own_service, own_solvers, wire):
    print(module.__file__)
print(service.MARKER, solvers.MARKER, sep="\\n")
"""


def check_imports(environment: Environment, cwd: Path) -> None:
    """The installed files are imported, and the namesakes are as they were."""
    *files, first, second = environment.python(IMPORTED, cwd).splitlines()
    assert files == [
        str(environment.packages / "dualstream" / name / "__init__.py") for name in LINKS
    ]
    assert f"MARKER = {first!r}\n" == f"MARKER = {second!r}\n" == MARKER
    for name in NAMESAKES:
        assert [path.name for path in (environment.packages / name).glob("*.py")] == ["__init__.py"]


def listening(process: "subprocess.Popen[str]") -> Iterator[str]:
    """The server's URL, once it is ready."""
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        if " listens on http" in line:
            url = line.split()[-1]
        if line.startswith("ready"):
            yield url
            return


def test_installed_wheel_serves_and_learns_in_an_empty_directory(
    platform_wheel, environment, empty
):
    environment.install(platform_wheel)
    check_imports(environment, empty)
    command = [environment.bin / "dualstream", "serve", "--port", "0"]
    with subprocess.Popen(
        [*command, "--store", f"sqlite:///{empty / 'rows.db'}"],
        cwd=empty,
        env=clean_environment(NUMBA_DISABLE_JIT="0", DUALSTREAM_CACHE_DIR=str(empty / ".cache")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            [url] = listening(process)
            with httpx.Client(base_url=url, timeout=ANSWERED_WITHIN_S) as client:
                spec = {"algorithm": "sgd", "features": "hashed"}
                client.put("/models/m", json=spec).raise_for_status()
                sample = {"x": {"site": "news"}, "y": 1}
                answer = client.post("/models/m/learn", json=sample).raise_for_status()
                assert answer.json()["seq"] == 1
                assert "<html" in client.get("/").raise_for_status().text
        finally:
            process.terminate()
        assert process.stderr is not None
        assert "ompil" not in process.stderr.read()
    assert (empty / "rows.db").exists()
    assert not (empty / ".cache").exists(), "kernels of the wheel need no other cache"
    check_imports(environment, empty)


def test_installed_sdist_is_imported(sdist, environment, empty):
    environment.install(sdist)
    check_imports(environment, empty)
    assert environment.python("from dualstream.service.cli import app", empty) == ""


def test_the_folder_that_a_build_leaves_is_ignored():
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    # The linters would read the copies in it.
    ignored = run("git", "check-ignore", "build/lib/dualstream/__init__.py")
    assert ignored.strip() == "build/lib/dualstream/__init__.py"

"""The Makefile in a copy of its own, mostly with a stub Python that records calls instead of installing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.signals import restore_signals
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[1]
TARGETS = {"setup", "demo", "up", "test", "soak", "fuzz", "check", "docs", "bench", "clean", "help"}

STUB_PYTHON = """#!/bin/sh
case "$1 $2" in
"-c "*) exec '{real}' -I -S -c 'import sys; sys.version_info = {version}; exec(sys.argv[1])' "$2" ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; echo "venv by $(basename "$0")" >>'{notes}' ;;
"-m pip")
    [ "$3" = install ] || exit 0
    shift 2; echo "pip $*" >>'{notes}'
    if [ -e '{notes}.hang' ]; then touch '{notes}.hanging'; exec sleep 600; fi
    if [ -e '{notes}.fail' ]; then echo "ERROR: the disk is on fire"; exit 1; fi
    for tool in lethe pytest ruff mypy lint-imports; do
        printf '#!/bin/sh\\necho "$(basename "$0") $* in $(pwd)" >>"%s"\\n' '{notes}' >.venv/bin/$tool
        chmod +x .venv/bin/$tool
    done ;;
*) echo "python $* in $(pwd)" >>'{notes}' ;;
esac
"""
SHIM = "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n"


class Copy:
    """The Makefile and pyproject.toml in a folder with a space in its name, with stub Pythons on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.elsewhere = folder / "elsewhere"
        self.stubs = folder / "stubs"
        self.notes = folder / "notes"
        for path in (self.root, self.elsewhere, self.stubs):
            path.mkdir()
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.root)
        for name in ("python3.11", "python3.12", "python3.13", "python3"):
            self.stub(name, SHIM)
        self.environment = {"PATH": f"{self.stubs}:{os.environ['PATH']}", "HOME": str(folder)}

    def stub(self, name: str, text: str) -> Path:
        path = self.stubs / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def python(self, name: str, version: tuple[int, int, int]) -> Path:
        real = Path(sys.executable).resolve()
        return self.stub(name, STUB_PYTHON.format(real=real, version=version, notes=self.notes))

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "-f", str(self.root / "Makefile"), *words],
            cwd=self.elsewhere,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def read_notes(self) -> list[str]:
        """Return and clear what the stubs recorded."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        self.notes.unlink(missing_ok=True)
        return lines

    @property
    def stamp(self) -> Path:
        return self.root / ".venv" / "stamp"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


@pytest.fixture
def ready(copy: Copy) -> Copy:
    """A copy whose environment is set up."""
    copy.python("python3.12", (3, 12, 1))
    assert copy.make("setup").returncode == 0
    copy.read_notes()
    return copy


INSTALL = "pip install --no-input -e .[worker,dev]"


def test_help_comes_first_and_names_every_target(copy: Copy) -> None:
    alone = copy.make()
    assert alone.returncode == 0
    assert {line.split()[1] for line in alone.stdout.splitlines() if line.startswith("make ")} == TARGETS
    assert copy.make("help").stdout == alone.stdout
    (phony,) = [line for line in (copy.root / "Makefile").read_text().splitlines() if line.startswith(".PHONY:")]
    assert set(phony.split()[1:]) == TARGETS
    assert not (copy.root / ".venv").exists()


def test_a_python_that_is_too_old_is_named(copy: Copy) -> None:
    old = copy.python("old python", (3, 10, 4))
    result = copy.make("demo", f"PYTHON={old}")
    assert result.returncode != 0
    assert f"{old} is 3.10.4." in result.stderr
    assert "Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.12" in result.stderr
    assert not (copy.root / ".venv").exists()


def test_failing_shims_and_an_old_python_are_not_used(copy: Copy) -> None:
    copy.python("python3", (3, 10, 9))
    result = copy.make("test")
    assert result.returncode != 0
    assert "Lethe needs Python 3.11 or newer: python3 is 3.10.9." in result.stderr
    assert copy.read_notes() == []


def test_a_missing_python_is_reported(copy: Copy) -> None:
    result = copy.make("setup")
    assert result.returncode != 0
    assert "none of these runs: python3.11 python3.12 python3.13 python3." in result.stderr


def test_the_first_python_that_runs_is_used(copy: Copy) -> None:
    copy.python("python3.12", (3, 12, 1))
    copy.python("python3", (3, 13, 0))
    result = copy.make("setup")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "Setting up .venv (a few minutes the first time) ...\n"
    assert copy.read_notes() == ["venv by python3.12", INSTALL]


def test_setup_is_done_once(ready: Copy) -> None:
    again = ready.make("setup")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert ready.make("-j4", "bench", "test").returncode == 0
    assert not any(line.startswith(("venv", "pip")) for line in ready.read_notes())


def test_a_changed_pyproject_is_installed_over_the_old_environment(ready: Copy) -> None:
    pyproject = ready.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + "\n# a change\n")
    assert ready.make("demo", "up").returncode == 0
    assert ready.read_notes() == [INSTALL, f"lethe demo in {ready.root}", f"lethe up in {ready.root}"]


def test_a_failed_update_is_tried_again_without_losing_the_environment(ready: Copy) -> None:
    pyproject = ready.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + "\n# a change\n")
    fail = ready.notes.with_suffix(".fail")
    fail.touch()
    result = ready.make("demo")
    assert result.returncode != 0
    assert "ERROR: the disk is on fire" in result.stderr
    assert "Fix that and run make again." in result.stderr
    assert "network" not in result.stderr

    fail.unlink()
    assert ready.make("setup").returncode == 0
    assert ready.read_notes() == [INSTALL, INSTALL]


def test_a_moved_checkout_is_set_up_anew(ready: Copy) -> None:
    ready.root = ready.root.rename(ready.root.with_name("moved"))
    assert ready.make("setup").returncode == 0
    assert ready.read_notes() == ["venv by python3.12", INSTALL]


def test_an_environment_whose_python_is_gone_is_made_anew(ready: Copy) -> None:
    (ready.root / ".venv" / "bin" / "python").unlink()
    assert ready.make("setup").returncode == 0
    assert ready.read_notes() == ["venv by python3.12", INSTALL]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_setup_is_repaired(copy: Copy, number: signal.Signals) -> None:
    copy.python("python3.12", (3, 12, 1))
    hang, hanging = copy.notes.with_suffix(".hang"), copy.notes.with_suffix(".hanging")
    hang.touch()
    interrupted = subprocess.Popen(
        ["make", "-C", str(copy.root), "demo"],
        env=copy.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=restore_signals,
    )
    wait_until(hanging.exists, "pip hangs")
    (copy.root / ".venv" / "debris").touch()
    os.killpg(interrupted.pid, number)
    assert interrupted.wait(timeout=20) != 0
    assert not copy.stamp.exists()

    hang.unlink()
    copy.read_notes()
    assert copy.make("setup").returncode == 0
    assert copy.read_notes() == ["venv by python3.12", INSTALL]
    assert copy.stamp.exists()
    assert not (copy.root / ".venv" / "debris").exists()


def test_every_target_runs_its_command_in_the_root(ready: Copy) -> None:
    expected = {
        "demo": ["lethe demo"],
        "up": ["lethe up"],
        "bench": ["lethe bench forget"],
        "docs": ["python -m vocabulary.certificate_schema", "python -m docs.generate"],
        "test": ["pytest -m not soak -n 3 --dist worksteal --durations=10"],
        "soak": ["pytest -m soak -n 2 --dist worksteal"],
        "fuzz": ["pytest -m  -s tests/service/fuzz"],
        "check": [
            "ruff check",
            "ruff format --check",
            "python -m tests.check_names",
            "mypy ",
            "lint-imports ",
            "python -m migrations.check",
        ],
    }
    assert set(expected) == TARGETS - {"help", "setup", "clean"}
    for target, commands in expected.items():
        assert ready.make(target).returncode == 0
        assert ready.read_notes() == [f"{command} in {ready.root}" for command in commands]


def test_the_current_folder_and_other_makefiles_do_not_matter(ready: Copy) -> None:
    shutil.copy(ready.root / "Makefile", ready.elsewhere / "Makefile")
    preamble = ready.elsewhere / "preamble.mk"
    preamble.touch()
    assert ready.make("up", MAKEFILES=str(preamble)).returncode == 0
    subprocess.run(["make", "-C", str(ready.root), "up"], env=ready.environment, check=True, capture_output=True)
    assert ready.read_notes() == [f"lethe up in {ready.root}"] * 2


def test_arguments_reach_pytest(ready: Copy) -> None:
    assert ready.make("test", "ARGS=-k 'one or two' -x").returncode == 0
    assert ready.read_notes() == [
        f"pytest -m not soak -n 3 --dist worksteal --durations=10 -k one or two -x in {ready.root}"
    ]


def test_a_failed_check_fails_and_its_step_is_printed_last(ready: Copy) -> None:
    (ready.root / ".venv" / "bin" / "mypy").write_text("#!/bin/sh\nexit 1\n")
    result = ready.make("check")
    assert result.returncode != 0
    assert result.stdout.splitlines() == ["check: rules", "check: format", "check: names", "check: types"]


def test_clean_removes_what_was_made_and_nothing_else(ready: Copy) -> None:
    for name in (".lethe", ".mypy_cache", "ml/__pycache__", ".git/__pycache__"):
        (ready.root / name).mkdir(parents=True)
    assert ready.make("clean").returncode == 0
    left = {str(path.relative_to(ready.root)) for path in ready.root.rglob("*")}
    assert left == {"Makefile", "pyproject.toml", "ml", ".git", ".git/__pycache__"}
    assert ready.make("clean").returncode == 0
    assert ready.read_notes() == []


@pytest.mark.slow
def test_a_missing_network_is_reported_and_the_next_run_tries_again(copy: Copy) -> None:
    unreachable = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(copy.elsewhere), "PIP_CONFIG_FILE": os.devnull}
    result = copy.make("setup", f"PYTHON={sys.executable}", **unreachable)
    assert result.returncode != 0
    assert "Setting up .venv" in result.stdout
    assert "hatchling" in result.stderr
    assert "no network? pip needs to reach the package index." in result.stderr
    assert not copy.stamp.exists()

    copy.python("python3.12", (3, 12, 1))
    assert copy.make("setup").returncode == 0
    assert copy.read_notes() == ["venv by python3.12", INSTALL]


def test_no_package_index_is_hard_coded(copy: Copy) -> None:
    text = (copy.root / "Makefile").read_text()
    assert "://" not in text
    installing = [line for line in text.splitlines() if "pip" in line and " install " in line]
    options = {option for line in installing for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line)}
    assert options == {"-m", "-e", "--python", "--no-input"}


@pytest.mark.parametrize(("check_fails", "targets"), [(False, ["check", "test", "soak"]), (True, ["check"])])
def test_ci_checks_then_tests_from_the_root(copy: Copy, check_fails: bool, targets: list[str]) -> None:
    script = copy.root / ".ci" / "run"
    script.parent.mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", script)
    copy.stub("make", f"#!/bin/sh\necho \"$* in $(pwd)\" >>'{copy.notes}'\nexit {int(check_fails)}\n")
    result = subprocess.run([script], cwd=copy.elsewhere, env=copy.environment, check=False)
    assert (result.returncode != 0) == check_fails
    assert copy.read_notes() == [f"{target} in {copy.root}" for target in targets]

"""The install selector in Chromium: on the first page of an index, over plain HTTP, as a user meets it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast._builder import matrix
from tests.kit import browser
from tests.kit.browser import Page
from tests.kit.loopback import served
from tests.kit.wheels import make_wheel
from tools.shared import selector
from tools.verbs import index

pytestmark = pytest.mark.chromium

KNOWN = matrix.load(Path(__file__).resolve().parents[2] / "matrix.toml")
LABELS = [spec.label.text for spec in KNOWN.labels if spec.label.text]
COMMAND = "document.getElementById('sel-command').textContent"
NOTE = "document.getElementById('sel-note').textContent"
# Chooses every combination that the page allows, as a user does, and collects the distinct answers.
EVERYTHING = """(() => {
  const found = new Set(), radios = (name) => [...document.querySelectorAll(`input[name=${name}]`)];
  const gpu = document.getElementById("sel-gpu");
  const each = (name, inner) => {
    for (const input of radios(name)) if (!input.disabled) { input.click(); inner(); }
  };
  let count = 0;
  const answer = () => {
    count += 1;
    const arch = radios("arch").find((one) => one.checked).value;
    const [command, note] = ["command", "note"].map((id) => document.getElementById(`sel-${id}`).textContent);
    if (document.getElementById("sel-conflict").hidden) found.add(JSON.stringify([arch, command, note]));
  };
  const driver = document.getElementById("sel-driver");
  const drivers = (inner) => {
    for (const value of driver.disabled ? [""] : ["", "525", "535.104", "12.4", "12.6", "12.8", "575", "13.0", "595"]) {
      driver.value = value;
      driver.dispatchEvent(new Event("input"));
      if (document.getElementById("sel-driver-why").textContent.includes("nvidia-smi")) throw Error(value);
      inner();
    }
  };
  each("arch", () => each("torch", () => each("build", () => drivers(() => {
    if (gpu.disabled) return answer();
    for (const option of gpu.options) {
      if (option.disabled) continue;
      gpu.value = option.value;
      gpu.dispatchEvent(new Event("change"));
      answer();
    }
  }))));
  return [count, [...found]];
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("selector")
    for label in LABELS:
        for machine in KNOWN.machines:
            make_wheel(work / "house", version=f"1.0+{label}", tag=f"py3-none-manylinux_2_28_{machine}")
    arguments = [str(work / "house"), "--out", str(work / "site"), "--version", "1.0"]
    assert index.main(arguments) == 0
    return work / "site"


@pytest.fixture(scope="module")
def house(site: Path) -> tuple[Path, str]:
    """The folder of the wheels, and uv."""
    program = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert program is not None, "uv is among the tools that make installs"
    return site.parent / "house", program


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as (url, _):
        yield url


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser.page() as page:
        yield page


@pytest.fixture
def tab(chromium: Page, address: str) -> Page:
    chromium.look()
    chromium.open(f"{address}/index.html")
    chromium.requests.clear()
    return chromium


def radio(name: str, value: str) -> str:
    return f"document.querySelector('input[name={name}][value=\"{value}\"]')"


def test_every_combination_names_a_wheel_of_the_index(tab: Page, site: Path, address: str, tmp_path: Path) -> None:
    count, answers = tab.evaluate(EVERYTHING)
    assert count > 3000
    wanted = set()
    for arch, command, note in map(json.loads, answers):
        theirs, ours = command.splitlines()
        assert theirs.startswith(("pip install torch==", "# torch for Jetson")), command
        assert note.startswith("On this machine: "), command
        words = ours.split()
        assert words[:2] == ["pip", "install"] and words[3] == "--extra-index-url"
        label = words[2].removeprefix("precast==1.0+")
        assert words[4] == f"{address}/{label}/"
        assert (site / label / "precast" / f"precast-1.0+{label}-py3-none-manylinux_2_28_{arch}.whl").is_file()
        wanted.add((arch, *words[2:]))
    assert {label for _, label, *_ in wanted} >= {"precast==1.0+cu129", "precast==1.0+cu132", "precast==1.0+cpu"}
    for number, (arch, *words) in enumerate(sorted(wanted)):
        into = tmp_path / str(number)
        only = ["--platform", f"manylinux_2_28_{arch}", "--only-binary", ":all:", "--no-deps", "--isolated", "-q"]
        command = [sys.executable, "-m", "pip", "download", *words, *only, "--index-url", words[-1], "-d", str(into)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert [path.name.endswith(f"{arch}.whl") for path in into.iterdir()] == [True]


def test_a_choice_that_cannot_be_is_greyed_with_its_reason(tab: Page) -> None:
    tab.evaluate(f"{radio('torch', '2.15.0')}.click()")
    assert tab.evaluate(f"{radio('build', 'cu128')}.disabled")
    assert "torch 2.15.0 has no such build" in tab.evaluate("document.getElementById('sel-build-why').textContent")
    volta = "[...document.getElementById('sel-gpu').options].find((one) => one.value === 'V100')"
    assert tab.evaluate(f"{volta}.disabled") and "no code" in tab.evaluate(f"{volta}.textContent")
    silent = "[...document.querySelectorAll('.selector input:disabled')].filter((one) => !one.title).length"
    assert tab.evaluate(silent) == 0
    tab.evaluate(f"{radio('build', 'cpu')}.click()")
    assert tab.evaluate("document.getElementById('sel-gpu').disabled") and "precast==1.0+cpu" in tab.evaluate(COMMAND)


def test_a_choice_in_conflict_stays_and_the_nearest_answer_is_a_button(tab: Page, address: str) -> None:
    def chosen(name: str) -> str:
        return str(tab.evaluate(f"document.querySelector('input[name={name}]:checked').value"))

    gpu, text = "document.getElementById('sel-gpu').value", "document.getElementById('sel-conflict-text').textContent"
    tab.open(f"{address}/index.html#torch=2.15.0&driver=535&gpu=V100")
    kept = tab.evaluate("location.hash")
    assert kept == "#torch=2.15.0&driver=535&gpu=V100", "a link is not rewritten"
    assert (chosen("torch"), tab.evaluate(gpu)) == ("2.15.0", "V100")
    assert tab.evaluate("document.getElementById('sel-driver').value") == "535"
    assert "V100: torch 2.15.0" in tab.evaluate(text) and "for CUDA 12.2" in tab.evaluate(text)
    assert "pip install" not in tab.evaluate(COMMAND)
    nearest = "document.getElementById('sel-nearest')"
    assert tab.evaluate(f"{nearest}.textContent").startswith("Take ")
    tab.evaluate(f"{nearest}.click()")
    assert tab.evaluate("document.getElementById('sel-conflict').hidden")
    assert (tab.evaluate(gpu), "driver=535" in tab.evaluate("location.hash")) == ("V100", True), "the machine stays"
    assert "precast==1.0+cu129" in tab.evaluate(COMMAND)


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("535.104.05", "CUDA 12.2"),
        ("CUDA 12.2", "CUDA 12.2"),
        ("999", "CUDA 13.2"),
        ("470", "CUDA 11.8"),
        ("new", "nvidia-smi"),
    ],
)
def test_a_driver_or_its_cuda_is_understood_and_rounded_down(tab: Page, driver: str, said: str) -> None:
    tab.evaluate(f"{radio('torch', '2.13.0')}.click(); {radio('build', 'cu126')}.click()")
    field = "document.getElementById('sel-driver')"
    tab.evaluate(f"{field}.value = {driver!r}; {field}.dispatchEvent(new Event('input'))")
    assert said in tab.evaluate("document.getElementById('sel-driver-why').textContent")
    label = "cu132" if said == "CUDA 13.2" else "cu129"
    assert ("precast==1.0+" + label in tab.evaluate(COMMAND)) == (said != "CUDA 11.8")


def test_jetson_orin_is_told_where_its_torch_comes_from(tab: Page) -> None:
    tab.evaluate(f"{radio('arch', 'aarch64')}.click()")
    gpu = "document.getElementById('sel-gpu')"
    tab.evaluate(f"{gpu}.value = 'Jetson Orin'; {gpu}.dispatchEvent(new Event('change'))")
    text = tab.evaluate(COMMAND)
    assert selector.JETSON["url"] in text and "torch==" not in text and "precast==1.0+" in text


def test_the_address_keeps_the_choice(tab: Page, address: str) -> None:
    tab.open(f"{address}/index.html#arch=x86_64&torch=2.5.1&build=cu124&gpu=V100&tool=uv")
    assert "uv pip install precast==1.0+cu129" in tab.evaluate(COMMAND) and "torch==2.5.1" in tab.evaluate(COMMAND)
    assert tab.evaluate(NOTE) == "On this machine: machine code for compute capability 7.0. Nothing is compiled."
    tab.evaluate("document.getElementById('sel-driver').value = '12.4'")
    tab.evaluate("document.getElementById('sel-driver').dispatchEvent(new Event('input'))")
    assert "driver=12.4" in tab.evaluate("location.hash")
    kept = tab.evaluate("location.href"), tab.evaluate(COMMAND)
    tab.open(kept[0])
    assert (tab.evaluate("location.href"), tab.evaluate(COMMAND)) == kept
    tab.open(f"{address}/index.html#torch=0.1&gpu=Voodoo&nonsense")
    assert tab.evaluate(f"{radio('torch', '2.15.0')}.checked")


def test_several_machines_get_one_label(tab: Page) -> None:
    """V100, A100, L4, H100 and GB10, each with another driver; then without the oldest, which CUDA 13 has left."""
    gpu, driver = "document.getElementById('sel-gpu')", "document.getElementById('sel-driver')"

    def choose(name: str, version: str) -> None:
        tab.evaluate(f"{gpu}.value = {name!r}; {gpu}.dispatchEvent(new Event('change'))")
        tab.evaluate(f"{driver}.value = {version!r}; {driver}.dispatchEvent(new Event('input'))")

    tab.evaluate(f"{radio('torch', '2.9.1')}.click(); {radio('build', 'cu126')}.click()")
    for name, version in (("V100", "535"), ("A100", "580"), ("L4", "12.4"), ("H100", "595")):
        choose(name, version)
        tab.evaluate("document.getElementById('sel-add').click()")
    tab.evaluate(f"{radio('arch', 'aarch64')}.click(); {radio('build', 'cu130')}.click()")
    choose("GB10 (DGX Spark)", "13.0")
    assert "precast==1.0+cu129" in tab.evaluate(COMMAND)
    note = tab.evaluate(NOTE)
    assert note.startswith("One label for all: machine code for V100, CUDA 12.2; ") and "own wheel of cu129" in note
    assert "NVRTC" not in note and "PTX" not in note
    kept = tab.evaluate("location.href"), tab.evaluate(COMMAND), note
    tab.open(kept[0])
    assert (tab.evaluate("location.href"), tab.evaluate(COMMAND), tab.evaluate(NOTE)) == kept
    for name in ("V100", "L4"):
        tab.evaluate(f"document.querySelector('[aria-label^=\"remove {name}\"]').click()")
    assert "precast==1.0+cu132" in tab.evaluate(COMMAND)
    assert tab.evaluate("document.activeElement.id") == "sel-add"
    tab.open(f"{kept[0].partition('#')[0]}#fleet=x86_64|Voodoo|12.2;x86_64|V100|;nonsense")
    assert tab.evaluate(NOTE).startswith("On this machine: ")


@pytest.mark.parametrize("tool", ["pip", "uv", "requirements.txt", "Dockerfile", "pyproject.toml (uv)"])
def test_torch_comes_first_in_every_form(tab: Page, tool: str) -> None:
    tab.evaluate(
        f"{radio('torch', '2.13.0')}.click(); {radio('build', 'cu126')}.click(); {radio('tool', tool)}.click()"
    )
    text = tab.evaluate(COMMAND)
    assert 0 < text.index("torch==2.13.0") < text.index("precast==1.0+cu129")
    assert "https://download.pytorch.org/whl/cu126" in text and "/cu129/" in text


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The public index: torch and ninja as made-up wheels, and no precast."""
    folder = tmp_path_factory.mktemp("public")
    for name, version in (("torch", "2.13.0"), ("ninja", "1.13.0")):
        wheel = make_wheel(folder / name, name=name, version=version, tag="py3-none-any")
        (folder / name / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    with served(folder) as (url, _):
        yield url


# The build of this checkout stands for ours: it gives the wheel of the label that is asked for.
BACKEND = """
import os, pathlib, shutil
def build_wheel(into, config_settings=None, metadata_directory=None):
    (made,) = pathlib.Path({wheels!r}).glob(f"precast-1.0+{{os.environ['PRECAST_LABEL']}}-*_x86_64.whl")
    return pathlib.Path(shutil.copy(made, into)).name
"""


def write_checkout(folder: Path, wheels: Path) -> None:
    (folder / "backend.py").write_text(BACKEND.format(wheels=str(wheels)))
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(f'{system}[project]\nname = "precast"\nversion = "1.0"\n')


@pytest.mark.parametrize("index", ["served", "none"])
@pytest.mark.parametrize("tool", ["pip", "uv", "requirements.txt", "Dockerfile", "pyproject.toml (uv)"])
def test_each_form_runs_as_pasted(
    tab: Page, tmp_path: Path, house: tuple[Path, str], public: str, tool: str, index: str
) -> None:
    release = next(one for one in KNOWN.releases if one.version == "2.13.0")
    build = radio("build", release.pypi["x86_64"])
    tab.evaluate(f"{radio('torch', '2.13.0')}.click(); {build}.click(); {radio('tool', tool)}.click()")
    if index == "none":
        field = "document.getElementById('sel-index')"
        tab.evaluate(f"{field}.value = ''; {field}.dispatchEvent(new Event('input'))")
    text = tab.evaluate(COMMAND)
    wheels, program = house
    if index == "none" and tool in ("pip", "uv"):  # the first line builds the wheel
        write_checkout(tmp_path, wheels)
    else:
        (tmp_path / "dist").symlink_to(wheels)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "VIRTUAL_ENV"))}
    env = {**clean, "PIP_INDEX_URL": f"{public}/", "UV_INDEX_URL": f"{public}/", "PIP_CONFIG_FILE": os.devnull}
    env |= {"UV_NO_CACHE": "1", "UV_PYTHON_DOWNLOADS": "never"}
    python = tmp_path / "environment"
    subprocess.run([program, "venv", "-q", "--python", sys.executable, python], env=env, check=True)
    env |= {
        "VIRTUAL_ENV": str(python),
        "PATH": f"{Path(program).parent}:{env['PATH']}",
        "PIP_PYTHON": f"{python}/bin/python",
    }
    if tool == "requirements.txt":
        (tmp_path / tool).write_text(text)
        text = "pip install -r requirements.txt"
    elif tool == "Dockerfile":
        text = "\n".join(re.findall(r"^RUN (.*)$", text, re.MULTILINE))
    elif tool == "pyproject.toml (uv)":
        (tmp_path / "pyproject.toml").write_text(text)
        text = f"uv sync -q --python {python}/bin/python && ln -s .venv/lib found"
    done = subprocess.run(["bash", "-ec", text], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.name for path in tmp_path.rglob("*.dist-info")}
    assert {"precast-1.0+cu132.dist-info", "torch-2.13.0.dist-info"} <= found


def test_the_keyboard_is_enough_and_the_focus_stays(tab: Page) -> None:
    focus = "document.activeElement.name + ' ' + document.activeElement.value"
    tab.press("Tab")
    assert tab.evaluate(focus) == "arch x86_64"
    tab.press("ArrowRight")
    assert tab.evaluate(focus) == "arch aarch64" and tab.evaluate(f"{radio('arch', 'aarch64')}.checked")
    tab.press("Tab")
    for _ in range(2):
        tab.press("ArrowRight")
    assert tab.evaluate(focus) == "torch 2.13.0" and "torch==2.13.0" in tab.evaluate(COMMAND)
    order = []
    for _ in range(7):
        tab.press("Tab")
        order.append(tab.evaluate("document.activeElement.id || document.activeElement.name"))
    assert order == ["build", "sel-driver", "sel-gpu", "sel-add", "tool", "sel-index", "sel-command"]


def test_copy_works_without_https(tab: Page, address: str) -> None:
    tab.open(f"{address.replace('127.0.0.1', browser.PLAIN_HOST)}/index.html")
    assert tab.evaluate("window.isSecureContext") is False and tab.evaluate("navigator.clipboard === undefined")
    tab.evaluate("document.addEventListener('copy', () => { window.copied = document.activeElement.value; }); 0")
    tab.evaluate("document.getElementById('sel-copy').focus(); document.getElementById('sel-copy').click()")
    assert tab.evaluate("window.copied") == tab.evaluate(COMMAND)
    assert tab.evaluate("document.getElementById('sel-copy').textContent") == "copied"
    assert tab.evaluate("document.activeElement.id") == "sel-copy"


def test_a_screen_reader_finds_a_name_for_everything(tab: Page) -> None:
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    controls = [
        (role, name) for role, name in named if role in ("radio", "button", "combobox", "radiogroup", "group", "form")
    ]
    assert len(controls) > 40 and all(name for _, name in controls), [role for role, name in controls if not name]
    assert ("combobox", "GPU") in controls and ("group", "torch") in controls
    assert any(role == "status" for role, _ in named)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1200])
def test_it_is_readable_on_a_phone_and_in_the_dark(tab: Page, width: int, dark: bool) -> None:
    tab.look(width=width, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    ratio = """(() => {
      const linear = (one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
      const light = (text) => {
        const [r, g, b] = text.match(/[0-9.]+/g).map((one) => linear(one / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const style = (css) => getComputedStyle(document.querySelector(css));
      const pairs = [
        [".selector legend", ".selector"], [".selector .note", ".selector"], [".selector .why", ".selector"],
        [".selector input:checked + span", ".selector input:checked + span"], [".selector pre", ".selector .answer"]];
      return pairs.map(([ink, paper]) => {
        const a = light(style(ink).color), b = light(style(paper).backgroundColor);
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      });
    })()"""
    assert min(tab.evaluate(ratio)) >= 4.5  # WCAG 2.2, 1.4.3


def test_the_page_asks_for_nothing_from_another_host(tab: Page, address: str) -> None:
    tab.open(f"{address}/index.html")
    assert [url for url in tab.requests if not url.startswith((address, "about:"))] == []


def test_the_table_of_gpus_has_each_name_once() -> None:
    names = [name for names in selector.GPUS.values() for name in names]
    assert len(names) == len(set(names)) > 20

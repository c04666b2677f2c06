"""``precast adopt`` from the command line: the certificate of a model by name, and whether a kept one still holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast.__main__ import main  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

MINE = """
import torch

class Net(torch.nn.Sequential):
    default_cfg = {"input_size": (3, 8, 8)}
    def __init__(self):
        super().__init__(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16))
    def forward(self, x):
        return super().forward(x)

def build():
    return Net()

def number():
    return 1
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mine_to_adopt.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine_to_adopt", raising=False)
    return "mine_to_adopt"


def test_a_dry_run_prints_the_certificate(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", "--dry-run", f"{mine}:build"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("mine_to_adopt.Net on ")
    assert "would be adopted" in said
    assert "1 x LayerNorm: layer_norm: " in said
    assert "output, parameters hidden" in said


def test_a_measurement_has_both_speeds(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", "--measure", f"{mine}:build"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("training", "inference"))]
    assert [row[0] for row in rows] == ["training", "inference"]
    assert all(row[3] == "samples/s" and row[4].endswith("x") for row in rows)


@pytest.mark.parametrize("target", ["mine_to_adopt:number", "mine_to_adopt:nothing", "no_such_module:build", "nothing"])
def test_what_is_no_model_is_refused(mine: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", "--dry-run", target]) == 3
    assert f"no model can be built from {target}" in capsys.readouterr().err


def test_a_kept_certificate_holds_until_something_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(64))
    kept, text = tmp_path / "report.json", precast.adopt(model, torch.randn(2, 64)).json()
    kept.write_text(text)
    assert main(["adopt", "--check", str(kept)]) == 0
    assert capsys.readouterr().out == f"{kept} holds here\n"
    facts = json.loads(text)
    facts["versions"]["torch"] = "2.4.0"
    facts["versions"]["no-such-package"] = "1.0"
    facts["device"] = "NVIDIA A100"
    facts["replaced"][0]["fingerprint"] = "0" * 16
    kept.write_text(json.dumps(facts))
    assert main(["adopt", "--check", str(kept)]) == 1
    said = capsys.readouterr().out
    for line in (
        f"torch 2.4.0 then, {torch.__version__} here",
        "no-such-package 1.0 then, none here",
        "NVIDIA A100 then, ",
        "torch.nn.modules.normalization.LayerNorm has another source: 0000000000000000 then, 38f4355525d94bc9 here",
    ):
        assert line in said
    assert main(["adopt", "--check", str(kept), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["drift"]) == 4


def test_a_certificate_that_failed_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(64))
    facts = json.loads(precast.adopt(model, torch.randn(2, 64)).json())
    facts["compared"][0]["difference"] = None  # NaN
    kept = tmp_path / "report.json"
    kept.write_text(json.dumps(facts))
    assert main(["adopt", "--check", str(kept)]) == 1
    assert capsys.readouterr().out == f"{kept} was never good: a comparison fails\n"


def test_without_a_comparison_the_certificate_is_not_good(
    tmp_path: Path, mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "report.json"
    kept.write_text(precast.adopt(torch.nn.Sequential(torch.nn.LayerNorm(64))).json())
    assert main(["adopt", "--check", str(kept)]) == 1
    assert capsys.readouterr().out == f"{kept} was never good: nothing was compared\n"
    (tmp_path / "mine_to_adopt.py").write_text(MINE.replace("(3, 8, 8)", "(3, 8, 9)"))
    assert main(["adopt", "--dry-run", f"{mine}:build"]) == 1
    said = capsys.readouterr().out
    assert "would be adopted by its proofs, NOT COMPARED" in said
    assert "not compared: no outputs: the untouched model does not take a random sample: RuntimeError: mat1" in said


def test_what_is_no_certificate_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "report.json"
    kept.write_text("[]")
    assert main(["adopt", "--check", str(kept)]) == 3
    assert f"{kept} cannot be checked" in capsys.readouterr().err


@pytest.mark.models
@pytest.mark.filterwarnings("ignore")
def test_a_class_of_transformers_is_made_small(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", "--dry-run", "transformers:LlamaForCausalLM", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"]
    assert {group["kind"] for group in facts["replaced"]} == {"rms_norm", "rotary", "gated_mlp", "loss"}

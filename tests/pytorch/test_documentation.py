"""Every Python block of the pages and of the README runs, and every link in them leads somewhere.

It is among the tests with PyTorch since most pages install the tracker into it.

The blocks of a page run one after another in one namespace, as someone runs them who reads it from
top to bottom; those that begin with ``>>>`` must show what they say. A block that cannot run here
says why in the comment before it: ``<!-- skip: next "the reason" -->``. Shell blocks do not run.
"""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import SkipTest

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

import torch.distributed
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from torch._C._distributed_c10d import HashStore

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_sybil = Sybil(
    [PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS), SkipParser()], path=str(ROOT)
)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the pages take for granted: a folder to write into, and a job, here of one rank."""
    monkeypatch.chdir(tmp_path)
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_the_blocks_of_a_page_run(page: Path) -> None:
    document = _sybil.parse(page)
    try:
        for block in document.examples():
            with suppress(SkipTest):
                block.evaluate()
    finally:
        # Hooks of parameters keep alive what they reach, optimizers too, where the collector
        # does not see it.
        document.namespace.clear()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_block_is_passed_over_without_a_reason(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"^ *```([^\n`{]*)$", text, re.MULTILINE)) <= {"", "python", "sh", "text"}
    skips = re.findall(r"^<!-- skip:.*$", text, re.MULTILINE)
    assert [skip for skip in skips if not re.fullmatch(r'<!-- skip: next ".+" -->', skip)] == []


# Pages that are on GitHub only; Sphinx checks the links between the others, and their headings.
@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=_name)
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "reference").glob("*.md")), ids=_name)
def test_the_reference_has_every_public_name(page: Path) -> None:
    text = page.read_text()
    described = set(
        re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)(?:\(.*\))?$", text, re.MULTILINE)
    )
    modules = re.findall(r"^\.\. py:module:: (\S+)$", text, re.MULTILINE)
    # Those of the frameworks say themselves what is missing.
    public = [pytest.importorskip(module, exc_type=ImportError) for module in modules]
    assert described == {name for module in public for name in module.__all__}

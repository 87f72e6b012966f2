"""What the embedded API server compiles from `deploy/crds` judges every case of the corpus as it must."""

import pytest

from tests.parity.cases import Case, load
from tests.parity.judges import CompiledJudge, mismatch

CASES = load()


@pytest.fixture(scope="module")
def judge() -> CompiledJudge:
    return CompiledJudge()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_case(judge: CompiledJudge, case: Case) -> None:
    verdict = await judge.judge(case)
    assert mismatch(case, verdict) == ""


def test_every_case_has_its_own_name() -> None:
    names = [case.name for case in CASES]
    assert sorted(set(names)) == sorted(names)

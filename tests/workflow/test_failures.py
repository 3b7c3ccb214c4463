"""A run that failed says so until its cause is gone, and an interrupted one is told as that."""

import pytest
import yaml

FAMILY = "encoding_loss"
SCORES = "results/small/encoding_loss/scores/q0.1_T100_sigma4_sound.parquet"
ESTIMATES = "results/small/encoding_loss/estimates.csv"
AT_SMALL = ("--cores", "1", "--config", "scale=small")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, checkout, snakemake):
    """A finished run of one paper alone."""
    directory = checkout(tmp_path_factory.mktemp("finished"))
    scales = directory / "workflow/config/scales"
    smoke = yaml.safe_load((scales / "smoke.yaml").read_text())
    (scales / "small.yaml").write_text(
        yaml.safe_dump({key: smoke[key] for key in ("seed", FAMILY)})
    )
    status, output = snakemake(directory, "all", *AT_SMALL)
    assert status == 0, output[-3000:]
    return directory


def planned(directory, snakemake, *targets):
    status, output = snakemake(directory, *targets, "--dry-run", *AT_SMALL)
    assert status == 0, output[-3000:]
    return output


def test_a_damaged_result_fails_the_same_command_until_it_is_removed(finished, snakemake):
    scores = finished / SCORES
    scores.write_bytes(scores.read_bytes()[:700])
    for _ in range(2):
        status, output = snakemake(finished, "claims", *AT_SMALL)
        assert status != 0, output[-3000:]
        assert f"{SCORES}: not a readable Parquet file" in output
        assert "remove the file and run the same command again" in output
    scores.unlink()
    status, output = snakemake(finished, "all", *AT_SMALL)
    assert status == 0, output[-3000:]
    assert scores.exists() and (finished / ESTIMATES).exists()
    assert "Nothing to be done" in planned(finished, snakemake, "all")


@pytest.mark.parametrize(
    ("target", "gone"),
    [
        ("figures", ESTIMATES),
        ("tables", SCORES),
        ("claims", SCORES),
        (FAMILY, ESTIMATES),
        (f"{FAMILY}_figure2", SCORES),
    ],
)
def test_whatever_a_target_stands_on_is_a_reason_to_run(finished, snakemake, target, gone):
    path = finished / gone
    content = path.read_bytes()
    path.unlink()
    try:
        assert "Nothing to be done" not in planned(finished, snakemake, target)
    finally:
        path.write_bytes(content)


def test_an_error_in_the_code_fails_the_same_command_again(finished, snakemake):
    path = finished / "src/hiddenstate/papers/encoding_loss/estimates.py"
    code = path.read_text()
    path.write_text(code + "\n\ndef estimate(*_):\n    raise ZeroDivisionError\n")
    try:
        for _ in range(2):
            status, output = snakemake(finished, FAMILY, *AT_SMALL)
            assert status != 0, output[-3000:]
            assert "ZeroDivisionError" in output
    finally:
        path.write_text(code)

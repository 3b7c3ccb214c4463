import hashlib
import json
import subprocess

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import hiddenstate
from hiddenstate.errors import InputError
from hiddenstate.pipeline import scores


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "world": ["in", "in", "out", "out"],
            "repeat": 0,
            "run": [0, 1, 0, 1],
            "score": [0.25, 1 / 3, -1e-300, 2.0],
        }
    )


def write(path, frame):
    scores.write(path, frame, scores.provenance({"q": 0.1}, seed=5, wall_seconds=1.0))


def test_scores_come_back_bit_for_bit_with_their_provenance(tmp_path, frame):
    write(tmp_path / "a.parquet", frame)
    again, origin = scores.read(tmp_path / "a.parquet")
    assert scores.digest(again) == scores.digest(frame)
    assert origin["cell"] == {"q": 0.1}
    assert origin["seed"] == 5
    assert origin["packages"]["numpy"] == np.__version__
    assert {"hiddenstate", "commit", "device", "wall_seconds", "python"} <= set(origin)


def test_the_digest_sees_the_last_bit(frame):
    changed = frame.copy()
    changed.loc[1, "score"] = np.nextafter(1 / 3, 1)
    assert scores.digest(changed) != scores.digest(frame)


def test_changed_scores_under_old_provenance_are_refused(tmp_path, frame):
    path = tmp_path / "a.parquet"
    write(path, frame)
    table = pq.read_table(path)
    metadata = table.schema.metadata
    frame.loc[0, "score"] = 0.5
    forged = table.set_column(3, "score", [frame["score"].to_numpy()])
    pq.write_table(forged.replace_schema_metadata(metadata), path)
    with pytest.raises(InputError, match=r"a\.parquet: values do not match"):
        scores.read(path)


def test_a_checked_file_that_is_damaged_or_absent_is_refused_first(tmp_path, frame):
    path = tmp_path / "a.parquet"
    with pytest.raises(InputError, match=r"a\.parquet"):
        scores.check(path, {"q": 0.1}, 5)
    write(path, frame)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"a\.parquet: not a readable"):
        scores.check(path, {"q": 0.1}, 5)


def test_tables_without_scores_are_kept_bit_for_bit_too(tmp_path):
    """Initial parameters: float32 values, no worlds."""
    path = tmp_path / "start.parquet"
    value = np.float32([0.1, -np.pi, 1e-45, np.nan])
    table = pd.DataFrame({"repeat": [0, 0, 1, 1], "part": ["a", "b", "a", "b"], "value": value})
    scores.write_table(path, table, scores.provenance({"n": 1}, seed=2, wall_seconds=0.5))
    again = scores.check(path, {"n": 1}, 2)
    assert again["value"].dtype == np.float32
    assert again["value"].to_numpy().tobytes() == value.tobytes()
    assert scores.digest(again) == scores.digest(table) == scores.read(path)[1]["digest"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"PAR1 nonsense", b"a,b\n1,2\n"])
def test_what_is_no_parquet_is_refused_by_name(tmp_path, content):
    path = tmp_path / "b.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"b\.parquet: not a readable"):
        scores.read(path)


def test_a_foreign_parquet_file_is_refused_by_name(tmp_path, frame):
    frame.to_parquet(tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet: no provenance"):
        scores.read(tmp_path / "c.parquet")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_never_written(tmp_path, frame, bad):
    frame.loc[0, "score"] = bad
    with pytest.raises(ValueError, match="finite"):
        write(tmp_path / "d.parquet", frame)
    assert not list(tmp_path.iterdir())


def test_one_world_alone_is_never_written(tmp_path, frame):
    with pytest.raises(ValueError, match="the column world must hold"):
        write(tmp_path / "d.parquet", frame.assign(world="in"))


PARAMETERS = {"start": {"model": "cnn", "stages": []}, "models": 3}


@pytest.mark.parametrize(
    ("parameters", "seed", "expected"),
    [
        (PARAMETERS, 6, "seed 5; expected 6"),
        (PARAMETERS | {"models": 4}, 5, "models 3; expected 4"),
        (
            PARAMETERS | {"start": {"model": "mlp", "stages": []}},
            5,
            "start.model cnn; expected mlp",
        ),
        (PARAMETERS | {"more": 1}, 5, r"more \(absent\); expected 1"),
        ({"start": PARAMETERS["start"]}, 5, r"models 3; expected \(absent\)"),
    ],
)
def test_scores_of_another_cell_are_refused_by_what_differs(
    tmp_path, frame, parameters, seed, expected
):
    path = tmp_path / "a.parquet"
    scores.write(path, frame, scores.provenance(PARAMETERS, seed=5, wall_seconds=1.0))
    assert scores.check(path, PARAMETERS, 5).equals(frame)
    assert scores.computed(path, PARAMETERS, 5)
    with pytest.raises(InputError, match=rf"a\.parquet: computed for {expected}"):
        scores.check(path, parameters, seed)
    assert not scores.computed(path, parameters, seed)


@pytest.mark.whole
def test_no_flipped_byte_changes_scores_unnoticed(tmp_path, frame):
    path = tmp_path / "a.parquet"
    write(path, frame)
    content = path.read_bytes()
    refused = 0
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            again, _ = scores.read(path)
        except InputError as error:
            assert "a.parquet" in str(error)
            refused += 1
        else:
            assert again.equals(frame)
    assert refused > 20


def test_what_is_not_there_or_unreadable_is_not_computed(tmp_path):
    assert not scores.computed(tmp_path / "none.parquet", {}, 1)
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    assert not scores.computed(tmp_path / "b.parquet", {}, 1)


def test_tables_with_gaps_and_words_come_back_whole(tmp_path):
    frame = pd.DataFrame({"method": ["a", None, "b"], "value": [1.0, np.nan, np.inf]})
    scores.write_table(
        tmp_path / "b.parquet", frame, scores.provenance({"q": 1}, seed=5, wall_seconds=1)
    )
    again = scores.check(tmp_path / "b.parquet", {"q": 1}, 5)
    assert again["value"].equals(frame["value"])
    assert again["method"].isna().tolist() == [False, True, False]


def test_without_a_repository_the_environment_says_the_commit(monkeypatch):
    monkeypatch.setenv("HIDDENSTATE_COMMIT", "abc123")
    monkeypatch.setenv("PATH", "")
    assert scores.commit() == "abc123"
    monkeypatch.setenv("HIDDENSTATE_COMMIT", "")
    assert scores.commit() is None


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("place", ["", "vendor/hiddenstate/", ".venv/lib/python/site-packages/"])
@pytest.mark.parametrize("tracked", [False, True])
def test_the_commit_is_this_package_s_or_none(tmp_path, monkeypatch, place, tracked):
    """Installed or unpacked in the repository of somebody else, it has none."""
    package = tmp_path / place / ("src/hiddenstate" if "site" not in place else "hiddenstate")
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "README.md").touch()
    git(tmp_path, "init")
    git(tmp_path, "add", "README.md", *[str(package)] * tracked)
    git(tmp_path, "commit", "-m", "First")
    monkeypatch.setattr(hiddenstate, "__file__", str(package / "__init__.py"))
    monkeypatch.delenv("HIDDENSTATE_COMMIT", raising=False)
    # As in a hook of another repository.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    own = tracked and not place
    assert scores.commit() == (git_head(tmp_path) if own else None)
    monkeypatch.setenv("HIDDENSTATE_COMMIT", "1234")
    assert scores.commit() == (git_head(tmp_path) if own else "1234")


def git_head(folder):
    command = ["git", "--git-dir", folder / ".git", "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def test_a_changed_bit_of_provenance_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": [0, 0], "score": [1.0, 2.0]})
    origin = {"cell": {"a": 1}, "seed": 1, "commit": "abc", "wall_seconds": 1.0}
    scores.write(path, frame, origin)
    table = pq.read_table(path)
    kept = json.loads(table.schema.metadata[b"hiddenstate"])
    for key, value in (("commit", "abd"), ("wall_seconds", 2.0), ("seed", 2), ("seal", "x")):
        for changed in (kept | {key: value}, {k: v for k, v in kept.items() if k != key}):
            metadata = {b"hiddenstate": json.dumps(changed).encode()}
            pq.write_table(table.replace_schema_metadata(metadata), path)
            for reads in (scores.read, scores.origin, scores.claimed_origin):
                with pytest.raises(InputError, match=r"a\.parquet: its provenance is not what was"):
                    reads(path)
            assert not scores.computed(path, {"a": 1}, 1)


def test_a_file_from_before_seals_is_sealed_once(tmp_path):
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": [0, 0], "score": [1.0, 2.0]})
    scores.write(path, frame, {"seed": 1})
    table = pq.read_table(path)
    kept = json.loads(table.schema.metadata[b"hiddenstate"])
    del kept["seal"]
    metadata = {b"hiddenstate": json.dumps(kept).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(InputError, match="its provenance is not what was written"):
        scores.read(path)
    scores.seal(path)
    assert scores.read(path)[1]["seed"] == 1
    with pytest.raises(InputError, match="expected a file without a seal"):
        scores.seal(path)


def test_numbers_that_hardly_repeat_are_stored_by_place_and_come_back_as_they_were(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "table.parquet"
    given = pd.DataFrame(
        {"distinct": rng.normal(size=999), "few": rng.integers(9, size=999) / 7, "word": "a"}
    )
    scores.write_table(path, given, {})
    chunks = pq.ParquetFile(path).metadata.row_group(0)
    split = ["BYTE_STREAM_SPLIT" in chunks.column(i).encodings for i in range(3)]
    assert split == [True, False, False]
    pd.testing.assert_frame_equal(scores.read(path)[0], given)
    pq.write_table(pq.read_table(path), tmp_path / "plain.parquet", compression="zstd")
    assert path.stat().st_size < 0.95 * (tmp_path / "plain.parquet").stat().st_size


def test_a_table_without_rows_is_written_and_read(tmp_path):
    scores.write_table(tmp_path / "empty.parquet", pd.DataFrame({"score": [], "n": []}), {})
    assert scores.read(tmp_path / "empty.parquet")[0].shape == (0, 2)


WORDS = ["in", "in", "out", "in", "", "a\0b", "é", "out"]


@pytest.mark.parametrize("gaps", [[], [2], [0, 1, 7]])
@pytest.mark.parametrize("kind", ["str", "string", object])
def test_the_digest_of_words_is_that_of_all_of_them_one_by_one(kind, gaps):
    words = pd.Series(WORDS * 3, dtype=kind)
    words[gaps] = None
    plain = "\0".join(map(str, words.to_numpy()))
    expected = hashlib.sha256(b"word" + plain.encode()).hexdigest()
    assert scores.digest(pd.DataFrame({"word": words})) == expected
    words[5] = "in"
    assert scores.digest(pd.DataFrame({"word": words})) != expected

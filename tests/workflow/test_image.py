"""The container image as clusters run it: read-only, without a network, a user without a name.

The image is built by buildah from a clean checkout. Where its base cannot be pulled, a stand-in of
the same name is made of Debian's packages.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hiddenstate.pipeline import scores

ROOT = Path(__file__).parents[2]
FAMILY = "encoding_loss"
USER = 4321
PROGRAMS = ("buildah", "debootstrap", "unshare", "chroot", "git")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, PROGRAMS)),
        reason="needs root, and buildah and debootstrap (apt-get install)",
    ),
]


def run(*words, **options):
    done = subprocess.run(
        [*map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert done.returncode == 0, (shlex.join(map(str, words)), done.stdout[-5000:])
    return done.stdout


class Store:
    """Images below a directory of their own."""

    def __init__(self, home):
        self.home = home
        self.options = ["--storage-driver", "vfs", "--root", home / "store"]
        self.options += ["--runroot", home / "run"]

    def buildah(self, *words, **options):
        return run("buildah", *self.options, *words, **options)

    def build(self, folder, tag, *words):
        """An image of a folder, by chroot alone: no namespaces, no daemon."""
        given = ("--isolation", "chroot", "--layers=false", "--pull-never", "-t", tag)
        self.buildah("bud", *given, *words, ".", cwd=folder)


def stand_in(home):
    """A folder with what the base image has: Debian with Python, pip and a certificate store."""
    root = home / "base/root"
    packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
    run("debootstrap", "--variant=minbase", packages, "trixie", root)
    # As in the base image: python is Python 3, and its packages are pip's.
    (root / "usr/bin/python").symlink_to("python3")
    for mark in (root / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    # pip reaches what it reaches here.
    for known in ("etc/ssl/certs/ca-certificates.crt", "etc/pip.conf"):
        if Path("/", known).exists():
            shutil.copy(Path("/", known), root / known)
    (home / "base/Containerfile").write_text("FROM scratch\nCOPY root /\n")
    return home / "base"


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The root of the built image, its environment and its command."""
    store = Store(tmp_path_factory.mktemp("image"))
    recipe = ROOT / "envs/Containerfile"
    base = next(w[5:] for w in recipe.read_text().splitlines() if w.startswith("FROM "))
    pulled = subprocess.run(
        ["buildah", *map(str, store.options), "pull", base], capture_output=True, timeout=300
    )
    if pulled.returncode:
        store.build(stand_in(store.home), base)
    checkout = store.home / "checkout"
    run("git", "clone", "--quiet", ROOT, checkout)
    store.build(checkout, "hiddenstate", "-f", "envs/Containerfile", "--build-arg", "COMMIT=abc")
    config = json.loads(store.buildah("inspect", "--type", "image", "hiddenstate"))
    config = config["OCIv1"]["config"]
    container = store.buildah("from", "--pull-never", "hiddenstate").strip()
    root = Path(store.buildah("mount", container).strip())
    (root / "out").mkdir(exist_ok=True)
    yield root, config["Env"], config["Cmd"]
    store.buildah("umount", container)


CONTAINER = """
set -e
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro "$ROOT"
mount --bind "$OUT" "$ROOT/out"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/tmp"
for device in null zero random urandom; do mount --bind "/dev/$device" "$ROOT/dev/$device"; done
mount -t tmpfs tmpfs "$ROOT/dev/shm"
exec chroot --userspec="$ID:$ID" "$ROOT" env -i "$@"
"""


def test_it_runs_read_only_without_a_network_as_any_user(image, tmp_path):
    root, environment, command = image
    for device in ("null", "zero", "random", "urandom"):
        (root / "dev" / device).touch()
    (root / "dev/shm").mkdir(exist_ok=True)
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, USER, USER)
    words = [*command[:-1], FAMILY, "--config", "scale=smoke"]
    assert command[-1] == "all"
    said = run(
        *("unshare", "--net", "--mount", "sh", "-c", CONTAINER, "sh", *environment, *words),
        env=os.environ | {"ROOT": str(root), "OUT": str(out), "ID": str(USER)},
    )
    assert "sentences of the paper" in said
    made = sorted((out / f"results/smoke/{FAMILY}/scores").glob("*.parquet"))
    assert made and (out / f"figures/smoke/{FAMILY}/figure1.pdf").stat().st_uid == USER
    # The same numbers as here, bit for bit; and the commit that the image was built from.
    for path in made:
        here = tmp_path / path.name
        run(
            *(
                Path(sys.executable).with_name("hiddenstate"),
                "simulate",
                FAMILY,
                "--cell",
                path.stem,
            ),
            *("--config", ROOT / "workflow/config/scales/smoke.yaml", "--out", here),
        )
        assert scores.read(path)[1]["digest"] == scores.read(here)[1]["digest"]
        assert scores.read(path)[1]["commit"] == "abc"

"""Two Slurm nodes on this machine: one is lost, the driver is killed, and the run finishes."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from hiddenstate.pipeline import scores

CONFIGURATION = Path("/etc/slurm/slurm.conf")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")
FAMILIES = ("cyclic_bounds", "encoding_loss")
TRAINED = "worst_case_init/scores/digits_pre0_n50_C1_T3_lr8_eps10_2x5.parquet"
AT_SMOKE = ("--config", "scale=smoke", "scores=train")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, PROGRAMS)),
        reason="needs root, and slurm-wlm and munge (apt-get install), but no cluster",
    ),
    pytest.mark.skipif(CONFIGURATION.exists(), reason=f"{CONFIGURATION}: there is a cluster here"),
]

SLURM = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/%n
SlurmdTimeout=15
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=1
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=2 RealMemory=8000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=2 RealMemory=8000
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def asked(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def until(what, seconds, awaited):
    """Wait until a question has an answer, and return it."""
    deadline = time.monotonic() + seconds
    while not (answer := awaited()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.5)
    return answer


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


@pytest.fixture
def cluster():
    """A controller and two nodes, which end with the test; the folder of their process ids."""
    home = Path(tempfile.mkdtemp(prefix="slurm", dir="/var/tmp"))
    home.chmod(0o755)
    (home / "state").mkdir()
    sockets = Path("/run/munge")
    sockets.mkdir(exist_ok=True)
    shutil.chown(sockets, "munge", "munge")
    sockets.chmod(0o755)
    (home / "munge").mkdir()
    shutil.chown(home / "munge", "munge", "munge")
    port, one, two = free_ports(3)
    CONFIGURATION.parent.mkdir(exist_ok=True)
    CONFIGURATION.write_text(
        SLURM.format(home=home, host=socket.gethostname(), port=port, one=one, two=two)
    )
    try:
        as_munge = ("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups")
        files = [f"--{name}-file={home}/munge/{name}" for name in ("pid", "log", "seed")]
        subprocess.run([*as_munge, "munged", *files], check=True)
        subprocess.run(["slurmctld"], check=True)
        for node in ("n1", "n2"):
            subprocess.run(["slurmd", "-N", node], check=True)
        until(
            "two idle nodes", 60, lambda: asked("sinfo", "-h", "-N", "-t", "idle").count("\n") == 2
        )
        yield home
    finally:
        for node in ("n1", "n2"):
            if (home / f"slurmd.{node}.pid").exists():
                lose(home, node)
        for name in ("slurmctld.pid", "munge/pid"):
            if (home / name).exists():
                end(int((home / name).read_text()))
        CONFIGURATION.unlink()
        shutil.rmtree(home, ignore_errors=True)


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def processes():
    lines = (line.split(maxsplit=1) for line in asked("ps", "-eo", "pid=,args=").splitlines())
    return [(int(process), command) for process, command in lines]


def children(process):
    """A process and all that came of it."""
    table = [line.split() for line in asked("ps", "-eo", "pid=,ppid=").splitlines()]
    found = [process]
    for parent in found:
        found += [int(pid) for pid, ppid in table if int(ppid) == parent]
    return found


def lose(home, node):
    """End a node's daemon, and the jobs on it with their guards, as a lost power supply would."""
    guards = tuple(f"slurmstepd: [{job}." for job in running_on(node))
    lost = [process for process, command in processes() if command.startswith(guards)]
    for process in [int((home / f"slurmd.{node}.pid").read_text()), *lost]:
        for child in children(process):
            end(child)


def running_on(node):
    return asked("squeue", "-h", "-t", "running", "-w", node, "-o", "%i").split()


def digests(directory):
    return {
        str(path.relative_to(directory)): scores.digest(scores.read(path)[0])
        for family in (*FAMILIES, TRAINED.split("/")[0])
        for path in sorted((directory / f"results/smoke/{family}").rglob("*.parquet"))
    }


def test_a_run_outlives_a_node_and_its_driver(tmp_path, cluster, checkout, start, snakemake):
    targets = [f"results/smoke/{family}/estimates.csv" for family in FAMILIES]
    targets.append(f"results/smoke/{TRAINED}")
    here = checkout(tmp_path / "here")
    status, output = snakemake(here, *targets, "--cores", "2", *AT_SMOKE)
    assert status == 0, output[-3000:]

    there = checkout(tmp_path / "there")
    # This cluster has no accounting.
    profile = ("--profile", "workflow/profiles/slurm", "--slurm-status-command", "squeue")
    # Models are trained in parts, and compared with those of one job on one machine.
    submitted = (*targets, *profile, *AT_SMOKE, "part_hours=0.0005")
    driver = start(there, *submitted, start_new_session=True)

    def at_work():
        assert driver.poll() is None, driver.communicate()[0][-3000:]
        return True

    until("a job on the second node", 180, lambda: at_work() and running_on("n2"))
    lose(cluster, "n2")

    made = there / "results/smoke"
    until("results", 600, lambda: at_work() and len([*made.rglob("*.parquet")]) > 3)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    assert not all((there / target).exists() for target in targets), "killed too late to tell"

    status, output = snakemake(there, "--unlock", "--config", "scale=smoke")
    assert status == 0, output
    # What the killed run submitted would be done twice: it is named, and ended here.
    if left := asked("squeue", "--me", "-h", "-o", "%i").split():
        status, output = snakemake(there, *submitted)
        assert status != 0
        found = re.search(r"an earlier run that was killed left jobs.* scancel (.+)", output)
        assert set(found[1].split()) <= set(left)
        subprocess.run(["scancel", *left], check=True)
        until("no job", 60, lambda: not asked("squeue", "--me", "-h"))
    status, output = snakemake(there, *submitted)
    assert status == 0, output[-5000:]
    assert "n2" in asked("sinfo", "-h", "-N", "-t", "down", "-o", "%N").split()
    assert digests(there) == digests(here)
    assert len(digests(here)) > 20
    assert scores.parts(made / TRAINED) == 2 and scores.parts(here / "results/smoke" / TRAINED) == 0

# What is done before the first job and after the last.


import fcntl
import sys


include: "progress.smk"


# Jobs end with this process, even if it is killed; and a conda environment gets the package of this
# tree, wherever it is run.
os.environ.update(
    HIDDENSTATE_DRIVER=str(os.getpid()), HIDDENSTATE_TREE=os.path.abspath(TREE)
)
# Jobs keep the memory of arrays for the next ones: glibc would hand it back every time, which made
# estimates take half as long again.
for name, size in (("TRIM", 64), ("MMAP", 32)):
    os.environ.setdefault(f"MALLOC_{name}_THRESHOLD_", str(size * 2**20))
USAGE = os.path.abspath(f"{LOGS}/usage.tsv")


def note_usage():
    """Let every job write down what it took."""
    os.makedirs(LOGS, exist_ok=True)
    os.environ.update(HIDDENSTATE_USAGE=USAGE)


LOCKS = []


def alone():
    """Hold the lock of ``./reproduce`` until the run has ended; stop the run if another is at work.

    The working directory is for one run. The tree, if it is elsewhere, may have several, and no
    set-up of its environment under them.
    """
    for folder, how in {TREE: fcntl.LOCK_SH, ".": fcntl.LOCK_EX}.items():
        path = f"{folder}/.reproduce.lock"
        if given(path):
            continue
        try:
            LOCKS.append(open(path, "a"))
            fcntl.flock(LOCKS[-1], how | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkflowError(
                f"another run is at work in {os.path.abspath(folder)}; wait for it, or stop it"
            )
        except OSError as error:
            if LOCKS and LOCKS[-1].name == path:
                LOCKS.pop().close()
            # An environment in a tree that cannot be written to is replaced by nobody.
            if folder == ".":
                logger.warning(
                    f"cannot lock {path}: {error.strerror}; start no other run in this directory"
                )


def given(path):
    """If ``./reproduce`` started this process and gave it the lock, as an open file."""
    try:
        file = os.fstat(int(os.environ.get("HIDDENSTATE_LOCK", "")))
        return os.path.samestat(file, os.stat(path))
    except (KeyError, ValueError, OverflowError, OSError):
        return False


def not_alone():
    """Give the lock back."""
    while LOCKS:
        LOCKS.pop().close()


def unlock():
    """Remove the lock that a killed run left behind, which Snakemake would ask to have removed."""
    left = list(Path(".snakemake/locks").glob("*.lock"))
    if left or "--unlock" in sys.argv:
        try:
            alone()
        except WorkflowError:
            not_alone()
            # Snakemake itself refuses what would write the same files; others only look.
            if "--unlock" in sys.argv:
                raise
            return
        # Without locks of files nothing is known of other runs.
        if LOCKS or given(".reproduce.lock"):
            for path in left:
                path.unlink(missing_ok=True)
        not_alone()


if workflow.is_main_process:
    unlock()
    # Also where nothing was to be done, of which Snakemake tells nobody.
    atexit.register(checked_at_the_end)


# Which executor runs the jobs is not known before.
onstart:
    alone()
    checked_place()
    checked_cluster()
    note_interruption(workflow.local_exec)
    # With a limit Snakemake looks for jobs to start every second, once more for each that has
    # finished: a quarter of a core after 80 of them.
    workflow.scheduler.job_rate_limiter = None
    note_usage()
    show_progress()


onsuccess:
    ENDED.append(True)
    usage.append(USAGE, "all", "snakemake", workers=False)
    not_alone()
    show_outcome(log, True)


onerror:
    ENDED.append(False)
    usage.append(USAGE, "all", "snakemake", workers=False)
    not_alone()
    show_outcome(log, False)

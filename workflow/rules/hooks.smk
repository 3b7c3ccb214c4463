# What is done before the first job and after the last.


include: "progress.smk"


# Jobs end with this process, even if it is killed; and a conda environment gets the package of this
# tree, wherever it is run.
os.environ.update(
    HIDDENSTATE_DRIVER=str(os.getpid()), HIDDENSTATE_TREE=str(workflow.basedir)
)


# Which executor runs the jobs is not known before.
onstart:
    checked_place()
    checked_cluster()
    note_interruption()
    show_progress()


onsuccess:
    show_outcome(log, True)


onerror:
    show_outcome(log, False)

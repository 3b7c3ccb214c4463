# What is done before the first job and after the last.


include: "progress.smk"


# Jobs end with this process, even if it is killed.
os.environ["HIDDENSTATE_DRIVER"] = str(os.getpid())


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

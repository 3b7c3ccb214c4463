# What is done before the first job and after the last.


include: "progress.smk"


# Which executor runs the jobs is not known before.
onstart:
    checked_place()
    show_progress()


onsuccess:
    show_outcome(log, True)


onerror:
    show_outcome(log, False)

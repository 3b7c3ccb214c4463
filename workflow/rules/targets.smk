# Each paper has rules of its own, one target for all it shows, and one per figure. Whatever a target
# stands on is its input: Snakemake does not run a job for a missing file that lies between.
for family in FAMILIES:

    include: f"{family}.smk"

    STANDS_ON[family] = [
        getattr(rules, f"{family}_estimate").input,
        getattr(rules, f"{family}_estimate").output,
    ]

    rule:
        name:
            family
        input:
            STANDS_ON[family],
            SHOWN[family][0].values(),
            SHOWN[family][1],
            f"{RESULTS}/{family}/claims.md",
        localrule: True

    for name, path in SHOWN[family][0].items():

        rule:
            name:
                f"{family}_{name}"
            input:
                STANDS_ON[family],
                path,
            localrule: True

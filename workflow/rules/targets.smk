# Each paper has rules of its own, one target for all it shows, and one per figure. Whatever a target
# stands on is its input: Snakemake does not run a job for a missing file that lies between.
for family in FAMILIES:

    include: f"{family}.smk"

    STANDS_ON[family] = [
        getattr(rules, f"{family}_estimate").input,
        getattr(rules, f"{family}_estimate").output,
    ]
    # A scale may have no figure of a paper, and so no rule.
    drawing = getattr(rules, f"{family}_figures", None)
    DRAWN[family] = list(drawing.output) if drawing else []
    TOLD[family] = list(getattr(rules, f"{family}_claims").output)

    rule:
        name:
            family
        input:
            STANDS_ON[family],
            DRAWN[family],
            TOLD[family],
        localrule: True

    for name, path in SHOWN[family][0].items():

        rule:
            name:
                f"{family}_{name}"
            input:
                STANDS_ON[family],
                path,
                f"{path[:-4]}.png",
            localrule: True


# Of every paper.
WHOLE = [*STANDS_ON.values(), *DRAWN.values(), *TOLD.values()]

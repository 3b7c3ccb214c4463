# Each paper has rules of its own, one target for all it shows, and one per figure.
for family in FAMILIES:

    include: f"{family}.smk"

    rule:
        name:
            family
        input:
            SHOWN[family][0].values(),
            SHOWN[family][1],
            f"{RESULTS}/{family}/claims.md",
        localrule: True

    for name, path in SHOWN[family][0].items():

        rule:
            name:
                f"{family}_{name}"
            input:
                path,
            localrule: True

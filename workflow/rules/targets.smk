# One target per family (its figures and tables) and one per figure, such as encoding_loss_figure2.

for family in FAMILIES:

    rule:
        name:
            family
        input:
            figure_files(family) + table_files(family),
        localrule: True

    for name in shown(family, FAMILIES[family].figures):

        rule:
            name:
                f"{family}_{name}"
            input:
                f"{FIGURES}/{family}/{name}.pdf",
            localrule: True

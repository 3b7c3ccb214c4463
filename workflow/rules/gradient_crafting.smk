# Tighter privacy auditing of DP-SGD in the hidden state threat model.


module gradient_crafting:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "gradient_crafting"}


use rule * from gradient_crafting as gradient_crafting_*

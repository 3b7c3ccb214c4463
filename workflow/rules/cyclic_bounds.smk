# Privacy of the last iterate in cyclically-sampled DP-SGD on nonconvex composite losses.


module cyclic_bounds:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "cyclic_bounds"}


use rule * from cyclic_bounds as cyclic_bounds_*

# To Shuffle or not to Shuffle: Auditing DP-SGD with Shuffling.


module shuffling:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "shuffling"}


use rule * from shuffling as shuffling_*

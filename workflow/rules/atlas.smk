# Every bound on common settings.


module atlas:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "atlas"}


use rule * from atlas as atlas_*

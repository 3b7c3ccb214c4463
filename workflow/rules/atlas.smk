# Every bound on common settings.


module atlas:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "atlas"}


use rule * from atlas exclude start, train, simulate, restore, verify as atlas_*

# How far the lower bounds can be trusted: calibration, and the bugs that an audit finds.


module estimators:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "estimators"}


use rule * from estimators as estimators_*
